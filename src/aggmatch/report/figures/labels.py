"""Figures of single pseudo labels: refined, mistaken, doubtful and explained ones."""

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from matplotlib.figure import Figure as Drawing
from torch import Tensor

from aggmatch.data import DataSet
from aggmatch.errors import AggMatchError
from aggmatch.report.explain import explain_run, panel
from aggmatch.report.figure import (
    PHONE,
    Panel,
    Plot,
    draw_distributions,
    each,
    house_style,
    new_figure,
    picture,
    short,
    slug,
)
from aggmatch.report.figures import Figure
from aggmatch.report.pseudo_labels import (
    Changes,
    PseudoLabeled,
    changes_of,
    evenly,
    explained_runs,
    explains,
    knows_all_classes,
    most_changed,
    pseudo_labels_at,
)
from aggmatch.report.style import FOREGROUND, RIGHT, WRONG
from aggmatch.runs.stats import grouped
from aggmatch.runs.stored import StoredRun, snapshot_step

# Refinement -----------------------------------------------------------------------------------------------------------


EXAMPLES = 3
"""Images shown of each kind of change."""


def refinement(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """Class distributions of single images before and after aggregation.

    One panel for each run that explains its pseudo labels.
    """
    yield from each(refinement_panel, explained_runs(runs))


def examples(changed: Changes, count: int = EXAMPLES) -> dict[str, list[int]]:
    """Positions of at most `count` images by kind of change; of those kept, evenly spaced ones."""
    kinds = {
        "corrected": changed.corrected[:count],
        "spoiled": changed.spoiled[:count],
        "kept": evenly(changed.kept, count),
    }
    return {kind: positions.tolist() for kind, positions in kinds.items() if len(positions)}


def refinement_panel(run: StoredRun) -> Panel:
    """One plot per kind of change, from the snapshot with most changes."""
    by_snapshot = changes_of(run)
    path = most_changed(by_snapshot)
    found, data = pseudo_labels_at(run, path), run.data()
    counts = "; ".join(
        f"step {snapshot_step(path):,}: {len(changed.corrected)} and {len(changed.spoiled)}"
        for path, changed in by_snapshot.items()
    )
    return Panel(
        f"refinement-{slug(run.name)}",
        f"Before and after aggregation, {run.name}",
        f"Class distributions p and p̄ of unlabelled training images; below each, the probability of the true class. Of "
        f"{len(found.index):,} pseudo labels, aggregation corrected and spoiled (made wrong), at {counts}. Shown, from "
        f"step {found.step:,} with the most such changes: the corrected ones with the largest gain of the true class, "
        f"the spoiled ones with its largest loss, and evenly spaced ones whose class was kept. {run.describe()}; plain "
        f"images, online network.",
        [
            Plot(kind, draw_refinement(kind, found, positions, data))
            for kind, positions in examples(by_snapshot[path]).items()
        ],
    )


@house_style()
def draw_refinement(kind: str, found: PseudoLabeled, positions: Sequence[int], data: DataSet) -> Drawing:
    """A row for each image: the picture, its distribution before, and after."""
    assert found.aggregated
    figure = new_figure(PHONE, 1.6 * len(positions) + 0.2)
    rows = figure.subplots(len(positions), 3, squeeze=False, width_ratios=(1.1, 1, 1))
    for (image, *charts), position in zip(rows, positions, strict=True):
        truth = int(found.truth[position])
        distributions = [found.own[position].numpy(), found.aggregated.probs[position].numpy()]
        picture(image, data.train.pixels[found.index[position]].numpy())
        image.set_xlabel(short(data.classes[truth]), size=8)
        draw_distributions(charts, distributions, truth, data.classes)
        for axes, probs in zip(charts, distributions, strict=True):
            axes.set_xlabel(f"{probs[truth]:.2f}", size=8)
    for axes, title in zip(rows[0], (kind, "before, p", "after, p̄"), strict=True):
        axes.set_title(title)
    return figure


# Mistakes -------------------------------------------------------------------------------------------------------------


MISTAKES = 8
"""Most mistakes shown."""
ROWS = 4
"""Most mistakes of one plot."""
CONFIDENT = 0.95
"""Probability from which a method without a threshold of its own counts as confident."""


def mistakes(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """Confident mistakes of another method that aggregation avoids.

    One panel for each group of runs that explain their pseudo labels, if another method has pseudo labels here.
    """
    looked_into = [run for run in runs if run.snapshots]
    rivals = [run for run in looked_into if not explains(run) and any("pseudo_coverage" in log for log in run.records)]
    groups = grouped([run for run in looked_into if explains(run)]).values() if rivals else []
    yield from each(lambda group: mistakes_panel(*pair_of(rivals, group)), groups)


def same_labels(run: StoredRun, other: StoredRun) -> bool:
    """Whether two runs were given the same labels on the same images."""
    if run.condition != other.condition:
        return False
    ours, theirs = run.split(), other.split()
    return all(torch.equal(getattr(ours, name), getattr(theirs, name)) for name in ("labeled", "labels", "unlabeled"))


def pair_of(rivals: Sequence[StoredRun], runs: Sequence[StoredRun]) -> tuple[StoredRun, StoredRun]:
    """The first rival and run that were given the same labels."""
    pairs = ((rival, run) for run in runs for rival in rivals if same_labels(run, rival))
    if pair := next(pairs, None):
        return pair
    names = ", ".join(run.name for run in runs)
    raise AggMatchError(f"{names} cannot be compared with another method: no other run here has the same labels.")


def corrected_mistakes(rival: PseudoLabeled, found: PseudoLabeled, threshold: float) -> tuple[Tensor, Tensor]:
    """Positions of the rival's confident mistakes, and of those that `found` has right; most confident first."""
    order_N = rival.confidence.argsort(descending=True, stable=True)
    mistakes = order_N[(~rival.right & (rival.confidence >= threshold))[order_N]]
    return mistakes, mistakes[found.right[mistakes]]


def take_turns(positions: Tensor, kind_N: Tensor) -> Tensor:
    """The same positions, the first of every kind before the second of any."""
    seen: Counter[int] = Counter()
    turns = []
    for kind in kind_N[positions].tolist():
        turns.append(seen[kind])
        seen[kind] += 1
    return positions[torch.tensor(turns, dtype=torch.long).argsort(stable=True)]


def mistakes_panel(rival: StoredRun, run: StoredRun) -> Panel:
    """Confident mistakes of a rival that the run has right, as pictures."""
    theirs, ours = (pseudo_labels_at(each, each.snapshots[-1]) for each in (rival, run))
    threshold = float(getattr(rival.settings.method, "threshold", CONFIDENT))
    mistakes, corrected = corrected_mistakes(theirs, ours, threshold)
    if not len(corrected):
        raise AggMatchError(f"There are no confident mistakes of {rival.name} that {run.name} has right.")
    pair_N = theirs.truth * theirs.probs.shape[1] + theirs.probs.argmax(1)
    spoiled = int((theirs.right & (theirs.confidence >= threshold) & ~ours.right).sum())
    shown = take_turns(corrected, pair_N)[:MISTAKES]
    names = (rival.method, run.method)
    return Panel(
        f"mistakes-{slug(run.name)}",
        f"Confident mistakes of {rival.name}, and {run.name}",
        f"Of {len(theirs.index):,} unlabelled training images, {rival.method} is sure of a wrong class (probability at "
        f"least {threshold:g}) for {len(mistakes)}; {run.method} has {len(corrected)} of these right, and is wrong on "
        f"{spoiled} of which {rival.method} is rightly sure. Shown: the corrected ones of which {rival.method} is most "
        f"sure, one of every pair of classes in turn, with its probability and the confidence of {run.method}. "
        f"{run.condition}, fold {run.fold}, the same labels for both; steps {theirs.step:,} and {ours.step:,}; plain "
        f"images, online networks.",
        [
            Plot(str(number) if len(shown) > ROWS else "", draw_mistakes(theirs, ours, names, part, run.data()))
            for number, part in enumerate(shown.split(ROWS), 1)
        ],
    )


@house_style()
def draw_mistakes(
    theirs: PseudoLabeled, ours: PseudoLabeled, names: tuple[str, str], positions: Tensor, data: DataSet
) -> Drawing:
    """A row for each image: the picture, and next to it the truth and both pseudo labels."""
    figure = new_figure(PHONE, 0.85 * len(positions) + 0.1)
    for row, position in zip(
        figure.subplots(len(positions), 2, squeeze=False, width_ratios=(1, 3.2)), positions.tolist(), strict=True
    ):
        picture(row[0], data.train.pixels[theirs.index[position]].numpy())
        row[1].set_axis_off()
        lines = [(f"true class {short(data.classes[int(theirs.truth[position])])}", FOREGROUND)]
        for found, name, mark, color in zip((theirs, ours), names, "✗✓", (WRONG, RIGHT), strict=True):
            label = short(data.classes[int(found.probs[position].argmax())])
            lines.append((f"{mark} {short(name)}: {label} ({found.confidence[position]:.2f})", color))
        for (text, color), height in zip(lines, (0.8, 0.5, 0.2), strict=True):
            row[1].text(0, height, text, color=color, va="center", size=8.5)
    return figure


# Doubts ---------------------------------------------------------------------------------------------------------------


EACH = 2
"""Images shown of each kind."""


def doubts(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """Doubtful pseudo labels, explained: subsets that disagree, and confident changes by aggregation.

    One panel for each run that explains its pseudo labels.
    """
    yield from each(doubts_panel, explained_runs(runs))


def doubts_panel(run: StoredRun) -> Panel:
    """Explanations of a run's doubtful pseudo labels."""
    found = pseudo_labels_at(run, run.snapshots[-1], known=knows_all_classes(run))
    overruled, unsure = confidently_overruled(found, EACH), least_sure(found, EACH)
    chosen = dict.fromkeys(found.index[[*unsure.tolist(), *overruled.tolist()]].tolist())
    words = describe_choice(len(found.index), len(unsure), len(overruled))
    return panel(run, explain_run(run, list(chosen)), words, name="doubts", title="Doubtful labels,")


def describe_choice(images: int, unsure: int, overruled: int) -> str:
    """The rule by which the images were chosen."""
    then = (
        f"then the {overruled} with the most consensus among those whose refined class is not the network's own"
        if overruled
        else "no image has a refined class that is not the network's own"
    )
    return f"Shown, out of {images:,}: the {unsure} with the least consensus; {then}."


def least_sure(found: PseudoLabeled, count: int) -> Tensor:
    """Positions of the images with the least consensus, least first; of equals the earlier one first."""
    return found.confidence.argsort(stable=True)[:count]


def confidently_overruled(found: PseudoLabeled, count: int) -> Tensor:
    """Positions of images whose refined class is not the network's own, the most consensus first."""
    assert found.aggregated is not None
    order = found.confidence.argsort(descending=True, stable=True)
    overruled = found.own.argmax(1) != found.aggregated.probs.argmax(1)
    return order[overruled[order]][:count]


# Explain --------------------------------------------------------------------------------------------------------------


def explain(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """The pseudo labels that aggregation corrected and spoiled most, explained.

    One panel for each run that explains its pseudo labels and has changed any.
    """
    yield from each(explain_panel, explained_runs(runs))


def explain_panel(run: StoredRun) -> Panel | None:
    """The images changed most at the snapshot with the most changes; None without any change."""
    by_snapshot = changes_of(run)
    path = most_changed(by_snapshot)
    changed, index = by_snapshot[path], pseudo_labels_at(run, path).index
    chosen = [int(index[position]) for position in (*changed.corrected[:1], *changed.spoiled[:1])]
    if not chosen:
        return None
    words = "Shown: the pseudo labels that aggregation corrected and spoiled most."
    return panel(run, explain_run(run, chosen, step=snapshot_step(path)), words)


EXPLAINS = "snapshots of a method that explains itself"
FIGURES = {
    "refinement": Figure(refinement, chapter="pseudo-labels", needs=EXPLAINS, order=10),
    "mistakes": Figure(mistakes, chapter="pseudo-labels", needs="snapshots of two methods, same labels", order=20),
    "doubts": Figure(doubts, chapter="pseudo-labels", needs=EXPLAINS, order=30),
    "explain": Figure(explain, chapter="pseudo-labels", needs=EXPLAINS, order=40),
}
