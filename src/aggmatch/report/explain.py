"""Why this label? The stored examples that made a refined pseudo label, and the votes of their subsets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from aggmatch.data import DataSet, Split
from aggmatch.data.images import UNKNOWN
from aggmatch.errors import AggMatchError
from aggmatch.inference import Snapshot
from aggmatch.report.figure import PHONE, Panel, Plot, draw_distributions, house_style, new_figure, picture, short, slug
from aggmatch.report.pseudo_labels import explains, no_snapshots, run_network
from aggmatch.report.style import FOREGROUND, RIGHT, WRONG
from aggmatch.runs.stored import StoredRun, snapshot_step
from aggmatch.tables import Table, plural

TOP = 8
"""Entries shown."""
COLUMNS = 4
"""Entries in one row."""


@dataclass(frozen=True)
class Entry:
    """A stored example as one image sees it."""

    share: float
    """Its part of the attention, of 1 over all examples."""
    terms: Mapping[str, float]
    """The terms of its similarity by name, such as "feature term" for the cosine of the features."""
    probs: NDArray[np.float32]
    """p_l, the class distribution it holds, (Y,)."""
    given: bool
    """Whether its image carries a given label."""
    given_label: int
    """That label, right or wrong; −1 if there is none or it is unknown."""
    source: int
    """The training image it came from; −1 if unknown."""

    @property
    def similarity(self) -> float:
        """S, the sum of the terms (Eq. 3)."""
        return sum(self.terms.values())

    @property
    def label(self) -> int:
        """The most probable class of the distribution it holds."""
        return int(self.probs.argmax())


@dataclass(frozen=True)
class Explanation:
    """Where the pseudo label of one training image comes from."""

    step: int
    index: int
    """Position among the training images."""
    name: str
    """Name or number of the image."""
    truth: int
    """−1 if unknown."""
    own: NDArray[np.float32]
    """p, the online network's own prediction, (Y,)."""
    refined: NDArray[np.float32]
    """p̄, (Y,)."""
    vote: NDArray[np.float32]
    """a, share of the subsets that vote for each class, (Y,)."""
    voters: int
    """Number of subsets that voted."""
    subsets: int
    """Number of subsets; those without an example do not vote."""
    confidence: float
    """c̄."""
    entries: list[Entry]
    """Those with the largest share, largest first."""
    filled: int
    """Number of stored examples."""


@torch.no_grad()
def explain(
    snapshot: Snapshot, data: DataSet, split: Split, indices: Sequence[int], top: int = TOP
) -> list[Explanation]:
    """Explain the pseudo labels of the training images at `indices` by the stored examples of a snapshot."""
    explainer = snapshot.method.explainer()
    assert explainer, "the method explains its pseudo labels"
    output = run_network(snapshot.online, data.train.pixels[list(indices)])
    own_BY = output.logits.softmax(-1)
    refined = explainer.refine(output.feature, own_BY)
    attention, examples = explainer.attention(output.feature, own_BY), explainer.examples()
    share_BQ = attention.share["all"]
    top_BK = share_BQ.topk(min(top, examples.filled)).indices
    labels = dict(zip(split.labeled.tolist(), split.labels.tolist(), strict=True))
    return [
        Explanation(
            step=snapshot.step,
            index=index,
            name=data.train.call(index),
            truth=int(data.train.labels[index]),
            own=own_BY[row].cpu().numpy(),
            refined=refined.probs[row].cpu().numpy(),
            vote=refined.vote[row].cpu().numpy(),
            voters=explainer.voters,
            subsets=explainer.subsets,
            confidence=float(refined.confidence[row]),
            entries=[
                Entry(
                    share=float(share_BQ[row, slot]),
                    terms={name: float(term_BQ[row, slot]) for name, term_BQ in attention.term.items()},
                    probs=examples.probs[slot].float().cpu().numpy(),
                    given=bool(examples.given[slot]),
                    given_label=labels.get(int(examples.source[slot]), UNKNOWN) if examples.given[slot] else UNKNOWN,
                    source=int(examples.source[slot]),
                )
                for slot in top_BK[row].tolist()
            ],
            filled=examples.filled,
        )
        for row, index in enumerate(indices)
    ]


def explain_run(
    run: StoredRun, indices: Sequence[int], *, step: int | None = None, top: int = TOP
) -> list[Explanation]:
    """Explain pseudo labels of a run at a snapshot.

    indices: numbers of training images. step: that of the snapshot; None for the last one, or for the newest checkpoint
    of an unfinished run, with a warning.
    top: number of stored examples to list, those with most weight.

    Example: `explain_run(read_run(Path("runs/mine")), [320])[0].confidence`.
    """
    if not explains(run):
        raise AggMatchError(
            f"{run.path} is a run of {run.method}, which cannot explain its pseudo labels. "
            f"Take a run of a method that can, such as aggmatch."
        )
    snapshot, data = find_snapshot(run, step), run.data()
    for index in indices:
        if not 0 <= index < len(data.train):
            raise AggMatchError(f"{data.name} has training images 0 to {len(data.train) - 1}, got {index}.")
    return explain(snapshot, data, run.split(), indices, top)


def find_snapshot(run: StoredRun, step: int | None) -> Snapshot:
    """The snapshot of a step; without a step the last one, or the newest checkpoint of a run that is not finished."""
    by_step = {snapshot_step(path): path for path in run.snapshots}
    saved = run.checkpoint_step
    if step is None and saved is not None and saved > max(by_step, default=0):
        return Snapshot.newest(run.folder, run.settings)
    if not by_step:
        raise AggMatchError(f"{run.path} {no_snapshots(run)}: only a run with snapshots can be explained.")
    if step is not None and step not in by_step:
        raise AggMatchError(f"{run.path} has no snapshot of step {step}. There are: {', '.join(map(str, by_step))}.")
    return Snapshot.load(run.snapshots[-1] if step is None else by_step[step], run.settings)


def image_number(data: DataSet, word: str) -> int:
    """The number of the training image that a word names: by number, by name, or by file in a folder of images."""
    path, folder = Path(word).parent.resolve() / Path(word).name, Path(data.name)
    if data.train.names and path.is_relative_to(folder) and (path.is_file() or folder.is_file()):  # or in a .zip
        from aggmatch.data.own.folder import name_below

        word = name_below(folder, path)
    if word in data.test.names:
        raise AggMatchError(f"{word} is a test image: only training images have pseudo labels.")
    return data.train.find(word)


# Words ------------------------------------------------------------------------------------------------------------


def heading(why: Explanation, classes: Sequence[str]) -> str:
    """The pseudo label in one line."""
    truth = f"true class {classes[why.truth]}" if why.truth != UNKNOWN else "of unknown class"
    own, refined = int(why.own.argmax()), int(why.refined.argmax())
    return (
        f"Image {why.name}, {truth}: own prediction {classes[own]} ({why.own[own]:.2f}), "
        f"refined {classes[refined]} ({why.refined[refined]:.2f}); votes of {describe_voters(why)}: "
        f"{describe_votes(why, classes)}; consensus {why.confidence:.2f}"
    )


def describe_voters(why: Explanation) -> str:
    """How many subsets voted."""
    if why.voters == why.subsets:
        return plural(why.subsets, "subset")
    return f"{why.voters} of {plural(why.subsets, 'subset')} (the others are empty)"


def describe_votes(why: Explanation, classes: Sequence[str]) -> str:
    """How many subsets voted for each class, the favourite first."""
    counts = np.rint(why.vote * why.voters).astype(int)
    order = [int(number) for number in counts.argsort(kind="stable")[::-1] if counts[number]]
    return ", ".join(f"{classes[number]} × {counts[number]}" for number in order) or "none"


def table(why: Explanation, data: DataSet) -> Table:
    """The entries with the largest share of the attention, one row each."""
    terms = list(why.entries[0].terms) if why.entries else []
    rows = []
    for entry in why.entries:
        values = [three_digits(term) for term in (*entry.terms.values(), entry.similarity)]
        held = [data.classes[entry.label], float(entry.probs[entry.label])]
        rows.append([f"{100 * entry.share:7.3f}", *values, *held, origin(entry, why, data), true_class(entry, data)])
    columns = ["share %", *terms, "sum", "holds", "p", "image", "true class"]
    return Table(columns, rows, title=heading(why, data.classes))


def percent(share: float) -> str:
    """A share in percent with two significant digits: the share of one of thousands is far below 1 %."""
    return f"{100 * share:.0f}" if share >= 0.1 else f"{100 * share:#.2g}"


def three_digits(term: float) -> str:
    """A term of the similarity with room for its sign; the class term is often too small for two digits."""
    return f"{round(term, 3) + 0.0: .3f}".replace("-", "−")


def given(entry: Entry, mark: str, classes: Sequence[str]) -> list[str]:
    """A mark with the label that the entry's image was given; empty if it was given none."""
    return [f"{mark} {classes[entry.given_label]}" if entry.given_label != UNKNOWN else mark] if entry.given else []


def origin(entry: Entry, why: Explanation, data: DataSet) -> str | None:
    """The training image that an entry came from, the label it was given, and whether it is the one explained."""
    if entry.source < 0:
        return None
    itself = ["itself"] if entry.source == why.index else []
    return ", ".join([data.train.call(entry.source), *given(entry, "given", data.classes), *itself])


def true_class(entry: Entry, data: DataSet) -> str | None:
    """The true class of the image that an entry came from; None if unknown."""
    truth = int(data.train.labels[entry.source]) if entry.source >= 0 else UNKNOWN
    return data.classes[truth] if truth != UNKNOWN else None


# Drawing ----------------------------------------------------------------------------------------------------------


def panel(
    run: StoredRun, explanations: Sequence[Explanation], words: str = "", *, name: str = "explain", title: str = ""
) -> Panel:
    """Explanations of one snapshot as a panel, one plot each.

    words: which images these are. name: first part of the panel's name. title: what the panel is about.
    """
    why, data = explanations[0], run.data()
    terms = ", ".join(why.entries[0].terms) if why.entries else "none"
    known = any(each.truth != UNKNOWN for each in explanations)
    frames = "A frame is green if an example holds the image's true class and red if not. " if known else ""
    return Panel(
        f"{name}-{slug(run.name)}",
        f"{title or 'Why this label?'} {run.name}",
        f"Training images with the network's own prediction p, the refined distribution p̄ and the votes of "
        f"{describe_voters(why)}. Below them, those {len(why.entries)} of {why.filled:,} stored examples that carry "
        f"most weight: share of the attention, class held with its probability, terms of the similarity ({terms}). "
        f"{frames}★ marks the label that its image was given. {words + ' ' if words else ''}{run.describe()}, step "
        f"{why.step:,}; plain images, online network.",
        [Plot(f"image-{why.index}", draw(why, data), heading(why, data.classes)) for why in explanations],
    )


@house_style()
def draw(why: Explanation, data: DataSet) -> Figure:
    """The image and its distributions above, the entries below."""
    rows = max(-(-len(why.entries) // COLUMNS), 1)
    figure = new_figure(PHONE, 1.4 + 1.65 * rows)
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=(1.4, 1.65 * rows))[:, 0]
    image, *charts = above.subplots(1, 4, width_ratios=(1.3, 1, 1, 1))
    picture(image, data.train.pixels[why.index].numpy())
    draw_distributions(charts, [why.own, why.refined, why.vote], why.truth, data.classes)
    for axes, title in zip(charts, ("own, p", "refined, p̄", "votes"), strict=True):
        axes.set_title(title, size=8, weight="normal")
    for axes, entry in zip_longest(
        below.subplots(rows, COLUMNS, squeeze=False, gridspec_kw={"hspace": 0.1}).flat, why.entries
    ):
        if entry:
            draw_entry(axes, entry, why, data)
        else:
            axes.set_axis_off()
    return figure


def draw_entry(axes: Axes, entry: Entry, why: Explanation, data: DataSet) -> None:
    """The picture of an entry, if its image is known, and its numbers."""
    color = FOREGROUND if why.truth == UNKNOWN else RIGHT if entry.label == why.truth else WRONG
    if entry.source >= 0:
        picture(axes, data.train.pixels[entry.source].numpy(), color, width=2)
    else:
        axes.set(xticks=[], yticks=[])
    mark = short(" ".join(given(entry, "★", data.classes)), 13)
    axes.set_title(f"{mark}\n{percent(entry.share)} %", loc="center", size=7.5, weight="normal")
    held = f"{short(data.classes[entry.label], 13)}\np {entry.probs[entry.label]:.2f}"
    terms = " ".join(three_digits(term).strip() for term in entry.terms.values())
    axes.set_xlabel(f"{held}\n{terms}", size=7)
