"""Why this label? The queue entries that made a refined pseudo label, and the votes of the subsets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from textwrap import fill as wrap

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from numpy.typing import NDArray

from aggmatch.data import DataSet, Split
from aggmatch.data.folder import name_below
from aggmatch.data.images import UNKNOWN
from aggmatch.errors import AggMatchError
from aggmatch.inference.model import Snapshot
from aggmatch.methods.aggmatch.aggregation import EMPTY
from aggmatch.methods.aggmatch.method import AggMatch
from aggmatch.report.attention import attention, similarity
from aggmatch.report.figure import FOREGROUND, RIGHT, WRONG, Panel, house_style, new_figure, picture, slug
from aggmatch.report.gaps import Gaps
from aggmatch.report.labels import changes_of, draw_distribution, most_changed, shown_classes
from aggmatch.report.pseudo_labels import deal, has_queue, look, pseudo_labels_at
from aggmatch.runs.stored import RunRecord, first_folds, no_snapshots, snapshot_step
from aggmatch.tables import Table, plural

TOP = 8
"""Entries shown."""


@dataclass(frozen=True)
class Entry:
    """A slot of the queue as one image sees it."""

    share: float
    """Its part of the attention, of 1 over the whole queue."""
    feature_term: float
    """cos(v, v_l)."""
    class_term: float
    """λ_sim · s(p, p_l), 0 at most."""
    probs: NDArray[np.float32]
    """p_l, the class distribution it holds, (Y,)."""
    given: bool
    """Whether its image carries a given label."""
    given_label: int
    """That label, right or wrong; −1 if there is none or it is not known."""
    source: int
    """The training image it came from; −1 if that is not known."""

    @property
    def similarity(self) -> float:
        """S = feature term + class term (Eq. 3)."""
        return self.feature_term + self.class_term

    @property
    def label(self) -> int:
        """The most probable class of what it holds."""
        return int(self.probs.argmax())


@dataclass(frozen=True)
class Explanation:
    """How the pseudo label of one training image came about."""

    step: int
    index: int
    """Position among the training images."""
    name: str
    """What the image is called."""
    truth: int
    """−1 if not known."""
    own: NDArray[np.float32]
    """p, the online network's own prediction, (Y,)."""
    refined: NDArray[np.float32]
    """p̄, (Y,)."""
    vote: NDArray[np.float32]
    """a, share of the subsets that vote for each class, (Y,)."""
    subsets: int
    """Number of subsets that voted."""
    dealt: int
    """Number of subsets; those that got no entry do not vote."""
    confidence: float
    """c̄."""
    entries: list[Entry]
    """Those with the largest share, largest first."""
    filled: int
    """Filled slots of the queue."""


@torch.no_grad()
def explain(
    snapshot: Snapshot, data: DataSet, split: Split, indices: Sequence[int], top: int = TOP
) -> list[Explanation]:
    """Explain the pseudo labels of the training images at `indices` by the queue of a snapshot."""
    method: AggMatch = snapshot.method  # type: ignore[assignment]
    queue = method.queue
    output = look(snapshot.online, data.train.pixels[list(indices)])
    own_BY = output.logits.softmax(-1)
    memory = deal(method)
    aggregated = method.attend(output.feature, own_BY, memory)
    terms = similarity(output.feature, own_BY, queue, method.config)
    share_BQ = attention(terms.total, memory.slot, method.config.similarity_temperature)
    filled = int(queue.fill.sum())
    top_BK = share_BQ.topk(min(top, filled)).indices
    labels = dict(zip(split.labeled.tolist(), split.labels.tolist(), strict=True))
    return [
        Explanation(
            step=snapshot.step,
            index=index,
            name=data.train.call(index),
            truth=int(data.train.labels[index]),
            own=own_BY[row].cpu().numpy(),
            refined=aggregated.probs[row].cpu().numpy(),
            vote=aggregated.vote[row].cpu().numpy(),
            subsets=int((memory.slot != EMPTY).any(1).sum()),
            dealt=len(memory.slot),
            confidence=float(aggregated.confidence[row]),
            entries=[
                Entry(
                    share=float(share_BQ[row, slot]),
                    feature_term=float(terms.feature[row, slot]),
                    class_term=float(terms.classes[row, slot]),
                    probs=queue.probs[slot].float().cpu().numpy(),
                    given=bool(queue.given[slot]),
                    given_label=labels.get(int(queue.source[slot]), UNKNOWN) if queue.given[slot] else UNKNOWN,
                    source=int(queue.source[slot]),
                )
                for slot in top_BK[row].tolist()
            ],
            filled=filled,
        )
        for row, index in enumerate(indices)
    ]


def explain_run(
    run: RunRecord, indices: Sequence[int], *, step: int | None = None, top: int = TOP
) -> list[Explanation]:
    """Explain pseudo labels of a run at the snapshot of a step, the last one where none is named."""
    if not has_queue(run):
        raise AggMatchError(f"{run.path} is a run of {run.method}, which has no queue to explain a pseudo label by.")
    snapshot = run.snapshot(choose_snapshot(run, step))
    data = run.data()
    for index in indices:
        if not 0 <= index < len(data.train):
            raise AggMatchError(f"{data.name} has training images 0 to {len(data.train) - 1}, got {index}.")
    return explain(snapshot, data, run.split(), indices, top)


def image_number(data: DataSet, word: str) -> int:
    """The training image that a word means: its number, its name, or in a folder of images its file."""
    path, folder = Path(word).parent.resolve() / Path(word).name, Path(data.name)
    if data.train.names and path.is_file() and path.is_relative_to(folder):
        word = name_below(folder, path)
    if word in data.test.names:
        raise AggMatchError(f"{word} is a test image: only training images get pseudo labels.")
    return data.train.find(word)


def choose_snapshot(run: RunRecord, step: int | None) -> Path:
    """The snapshot of a step, or the last one."""
    if not run.snapshots:
        raise AggMatchError(f"{run.path} {no_snapshots(run)}: only a run with snapshots can be explained.")
    by_step = {snapshot_step(path): path for path in run.snapshots}
    if step is None:
        return run.snapshots[-1]
    if step not in by_step:
        raise AggMatchError(f"{run.path} has no snapshot of step {step}. There are: {', '.join(map(str, by_step))}.")
    return by_step[step]


# Shown ------------------------------------------------------------------------------------------------------------


def heading(why: Explanation, classes: Sequence[str]) -> str:
    """The pseudo label in one line."""
    truth = f"true class {classes[why.truth]}" if why.truth != UNKNOWN else "of unknown class"
    own, refined = int(why.own.argmax()), int(why.refined.argmax())
    return (
        f"Image {why.name}, {truth}: own prediction {classes[own]} ({why.own[own]:.2f}), "
        f"refined {classes[refined]} ({why.refined[refined]:.2f}); votes of {voters(why)}: {votes(why, classes)}; "
        f"consensus {why.confidence:.2f}"
    )


def voters(why: Explanation) -> str:
    """How many subsets voted."""
    if why.subsets == why.dealt:
        return plural(why.dealt, "subset")
    return f"{why.subsets} of {plural(why.dealt, 'subset')}, the others being empty"


def votes(why: Explanation, classes: Sequence[str]) -> str:
    """How the subsets voted, the favourite first."""
    counts = np.rint(why.vote * why.subsets).astype(int)
    order = [int(number) for number in counts.argsort(kind="stable")[::-1] if counts[number]]
    return ", ".join(f"{classes[number]} × {counts[number]}" for number in order) or "none"


def table(why: Explanation, data: DataSet) -> Table:
    """The entries with the largest share of the attention, one row each."""
    columns = ["share %", "cosine", "class term", "sum", "holds", "p", "image", "true class"]
    rows = []
    for entry in why.entries:
        terms = [three_digits(term) for term in (entry.feature_term, entry.class_term, entry.similarity)]
        held = [data.classes[entry.label], float(entry.probs[entry.label])]
        rows.append([100 * entry.share, *terms, *held, origin(entry, why, data), true_class(entry, data)])
    return Table(columns, rows, title=heading(why, data.classes))


def three_digits(term: float) -> str:
    """A term of the similarity, with room for its sign: the class term is often too small for two digits."""
    return f"{round(term, 3) + 0.0: .3f}".replace("-", "−")


def given(entry: Entry, mark: str, classes: Sequence[str]) -> list[str]:
    """A mark with the label that the entry's image was given, where it was given one."""
    return [f"{mark} {classes[entry.given_label]}" if entry.given_label != UNKNOWN else mark] if entry.given else []


def origin(entry: Entry, why: Explanation, data: DataSet) -> str | None:
    """The training image that an entry came from, the label it was given, and whether it is the one explained."""
    if entry.source < 0:
        return None
    itself = ["itself"] if entry.source == why.index else []
    return ", ".join([data.train.call(entry.source), *given(entry, "given", data.classes), *itself])


def true_class(entry: Entry, data: DataSet) -> str | None:
    """The true class of the image that an entry came from."""
    truth = int(data.train.labels[entry.source]) if entry.source >= 0 else UNKNOWN
    return data.classes[truth] if truth != UNKNOWN else None


def panels(runs: Sequence[RunRecord]) -> Iterator[Panel]:
    """For the first run of each kind with a queue: the image that aggregation corrected, or spoilt, most."""
    gaps = Gaps()
    yield from gaps.each(changed_most, [run for run in first_folds(runs) if run.snapshots and has_queue(run)])
    gaps.tell()


def changed_most(run: RunRecord) -> Panel | None:
    """The images that aggregation corrected and spoilt most at the snapshot with the most changes; None without any."""
    by_snapshot = changes_of(run)
    path = most_changed(by_snapshot)
    changed, index = by_snapshot[path], pseudo_labels_at(run, path).index
    chosen = [int(index[position]) for position in (*changed.corrected[:1], *changed.spoilt[:1])]
    if not chosen:
        return None
    explanations = explain(run.snapshot(path), run.data(), run.split(), chosen)
    return panel(run, explanations, "Shown: the pseudo labels that aggregation corrected and spoilt most.")


def panel(run: RunRecord, explanations: Sequence[Explanation], words: str = "") -> Panel:
    """Explanations of one snapshot below each other."""
    why = explanations[0]
    return Panel(
        f"explain-{slug(run.name)}",
        f"Why this label? {run.name}",
        f"Training images with the network's own prediction p, the refined distribution p̄ and the votes of "
        f"{voters(why)}; beside them those {len(why.entries)} of {why.filled:,} queue entries that carried "
        f"most weight: share of the attention, class held with its probability, cosine and class term of the "
        f"similarity. A frame is green where an entry holds the image's true class and red where not; ★ stands before "
        f"the label that an entry's image was given. {words + ' ' if words else ''}{run.describe()}, "
        f"step {why.step:,}; plain images, online network.",
        draw(explanations, run.data()),
    )


@house_style()
def draw(explanations: Sequence[Explanation], data: DataSet) -> Figure:
    """A block for each explanation."""
    figure = new_figure(9.5, 3.1 * len(explanations))
    blocks = figure.subfigures(len(explanations), 1, squeeze=False)[:, 0]
    for block, why in zip(blocks, explanations, strict=True):
        draw_explanation(block, why, data)
    return figure


def draw_entry(axes: Axes, entry: Entry, why: Explanation, data: DataSet) -> None:
    """The picture of an entry, where it is known, and its numbers."""
    color = FOREGROUND if why.truth == UNKNOWN else RIGHT if entry.label == why.truth else WRONG
    if entry.source >= 0:
        picture(axes, data.train.pixels[entry.source].numpy(), color, width=2)
    else:
        axes.set(xticks=[], yticks=[])
    words = [f"{100 * entry.share:.0f} %", *given(entry, "★", data.classes)]
    axes.set_title(" ".join(words), loc="center", size=8)
    axes.set_xlabel(
        f"holds {data.classes[entry.label]} ({entry.probs[entry.label]:.2f})\n"
        f"{three_digits(entry.feature_term).strip()} − {abs(entry.class_term):.3f}",
        size=7.5,
    )


def draw_explanation(block: SubFigure, why: Explanation, data: DataSet) -> None:
    """The image and its distributions on the left, the entries on the right."""
    block.suptitle(wrap(heading(why, data.classes), 120), x=0.01, ha="left", size=9, weight="bold")
    left, right = block.subfigures(1, 2, width_ratios=(5, 5.5), squeeze=False)[0]
    image, *charts = left.subplots(1, 4, width_ratios=(1.3, 1, 1, 1))
    picture(image, data.train.pixels[why.index].numpy())
    distributions = {"own, p": why.own, "refined, p̄": why.refined, "votes": why.vote}
    shown = shown_classes(list(distributions.values()), why.truth)
    for number, (axes, (title, probs)) in enumerate(zip(charts, distributions.items(), strict=True)):
        draw_distribution(axes, probs, why.truth, shown, data.classes)
        axes.set_title(title)
        if number:
            axes.set_yticklabels([])
    columns = max(-(-len(why.entries) // 2), 1)
    for axes, entry in zip_longest(right.subplots(2, columns, squeeze=False).flat, why.entries):
        if entry:
            draw_entry(axes, entry, why, data)
        else:
            axes.set_axis_off()
