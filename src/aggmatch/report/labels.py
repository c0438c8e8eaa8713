"""Single pseudo labels: what aggregation makes of a prediction, and confident mistakes of FixMatch that it avoids."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from aggmatch.data import DataSet
from aggmatch.data.images import UNKNOWN
from aggmatch.errors import AggMatchError
from aggmatch.report.figure import (
    ACCENT,
    FOREGROUND,
    NEUTRAL,
    RIGHT,
    WRONG,
    Panel,
    house_style,
    new_figure,
    picture,
    slug,
)
from aggmatch.report.gaps import Gaps
from aggmatch.report.pseudo_labels import PseudoLabeled, evenly, has_queue, pseudo_labels_at
from aggmatch.runs.stored import RunRecord, first_folds, grouped, snapshot_step

EXAMPLES = 3
"""Images shown of each kind of change."""
MISTAKES = 8
"""Most mistakes shown."""
BARS = 10
"""Most classes in a bar chart: of more, those with the largest probabilities."""


def panels(runs: Sequence[RunRecord]) -> Iterator[Panel]:
    """Changes by aggregation for runs with a queue, and mistakes corrected where FixMatch ran on the same labels."""
    gaps = Gaps()
    yield from gaps.each(refinement_panel, [run for run in first_folds(runs) if run.snapshots and has_queue(run)])
    rivals = [run for run in runs if run.snapshots and run.method == "fixmatch"]
    kinds = grouped([run for run in runs if run.snapshots and has_queue(run)]).values() if rivals else []
    yield from gaps.each(lambda kind: mistakes_panel(*pair_of(rivals, kind)), kinds)
    gaps.tell()


# Before and after aggregation -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Changes:
    """Positions of pseudo labels by what aggregation did to them, the largest change of the true class first."""

    corrected: Tensor
    """Wrong before, right after."""
    spoilt: Tensor
    """Right before, wrong after."""
    kept: Tensor
    """The same class before and after, in order."""

    @property
    def count(self) -> int:
        """Labels that became right or wrong."""
        return len(self.corrected) + len(self.spoilt)

    def examples(self, count: int) -> list[tuple[str, int]]:
        """Kind and position of at most `count` of each kind; of those kept, evenly spaced ones."""
        chosen = {"corrected": self.corrected[:count], "spoilt": self.spoilt[:count], "kept": evenly(self.kept, count)}
        return [(kind, position) for kind, positions in chosen.items() for position in positions.tolist()]


def changes(own_NY: Tensor, refined_NY: Tensor, truth_N: Tensor) -> Changes:
    """Sort pseudo labels by what aggregation did to them."""
    before_N, after_N = own_NY.argmax(1), refined_NY.argmax(1)
    gain_N = (refined_NY - own_NY).gather(1, truth_N[:, None]).squeeze(1)
    order_N = gain_N.argsort(descending=True, stable=True)
    corrected_N = (before_N != truth_N) & (after_N == truth_N)
    spoilt_N = (before_N == truth_N) & (after_N != truth_N)
    return Changes(
        corrected=order_N[corrected_N[order_N]],
        spoilt=order_N.flip(0)[spoilt_N[order_N.flip(0)]],
        kept=(before_N == after_N).nonzero().flatten(),
    )


def changes_of(run: RunRecord) -> dict[Path, Changes]:
    """Changes by aggregation at every snapshot."""
    found = {path: pseudo_labels_at(run, path) for path in run.snapshots}
    return {
        path: changes(each.own, each.aggregated.probs, each.truth) for path, each in found.items() if each.aggregated
    }


def most_changed(by_snapshot: dict[Path, Changes]) -> Path:
    """The snapshot at which aggregation corrected or spoilt most labels; the latest of equals."""
    return max(reversed(by_snapshot), key=lambda path: by_snapshot[path].count)


def refinement_panel(run: RunRecord) -> Panel:
    """Class distributions of a few images before and after aggregation."""
    by_snapshot = changes_of(run)
    path = most_changed(by_snapshot)
    found = pseudo_labels_at(run, path)
    counts = "; ".join(
        f"step {snapshot_step(path):,}: {len(changed.corrected)} and {len(changed.spoilt)}"
        for path, changed in by_snapshot.items()
    )
    return Panel(
        f"refinement-{slug(run.name)}",
        f"Before and after aggregation, {run.name}",
        f"Class distributions p and p̄ of unlabelled training images. Of {len(found.index):,} pseudo labels, "
        f"aggregation corrected and spoilt, at {counts}. Shown, from step {found.step:,} with the most such changes: "
        f"the corrected ones with the largest gain of the true class, the spoilt ones with its largest loss, and "
        f"evenly spaced kept ones; below each, the probability of the true class. {run.describe()}; plain images, "
        f"online network.",
        draw_refinement(found, by_snapshot[path].examples(EXAMPLES), run.data()),
    )


@house_style()
def draw_refinement(found: PseudoLabeled, examples: Sequence[tuple[str, int]], data: DataSet) -> Figure:
    """A column for each image: the picture, its distribution before, and after."""
    assert found.aggregated
    named = len(data.classes) > BARS  # every column has classes of its own
    figure = new_figure((1.5 if named else 0.95) * len(examples) + 1, 4.4)
    places = figure.subplots(3, len(examples), squeeze=False, height_ratios=(1, 1.5, 1.5))
    for column, (kind, position) in enumerate(examples):
        truth = int(found.truth[position])
        distributions = found.own[position].numpy(), found.aggregated.probs[position].numpy()
        shown = shown_classes(distributions, truth)
        first = column == 0 or examples[column - 1][0] != kind
        picture(places[0, column], data.train.pixels[found.index[position]].numpy())
        places[0, column].set_title(kind if first else " ")
        places[0, column].set_xlabel(f"{data.classes[truth]}", size=8)
        for axes, probs in zip(places[1:, column], distributions, strict=True):
            draw_distribution(axes, probs, truth, shown, data.classes)
            axes.set_xlabel(f"{probs[truth]:.2f}", size=8)
            if column and not named:
                axes.set_yticklabels([])
    for axes, label in zip(places[:, 0], ("", "before, p", "after, p̄"), strict=True):
        axes.set_ylabel(label)
    return figure


def shown_classes(distributions: Sequence[NDArray[np.float32]], truth: int) -> list[int]:
    """Classes to draw bars of: all if they are few, else those with the largest probabilities and the true one."""
    largest = np.maximum.reduce(list(distributions))
    ranked = sorted(range(len(largest)), key=lambda number: (number != truth, -largest[number]))
    return sorted(ranked[:BARS])


def draw_distribution(
    axes: Axes, probs: NDArray[np.float32], truth: int, shown: Sequence[int], classes: Sequence[str]
) -> None:
    """Bars of a class distribution: the true class green on a dotted line, a wrong favourite red."""
    places = {number: place for place, number in enumerate(shown)}
    favorite = {int(probs.argmax()): ACCENT if truth == UNKNOWN else WRONG}
    colors = [RIGHT if number == truth else favorite.get(number, NEUTRAL) for number in shown]
    axes.barh(list(places.values()), probs[list(shown)], color=colors)
    axes.set_yticks(list(places.values()), [classes[number] for number in shown], size=7)
    axes.set(xlim=(0, 1), xticks=[], ylim=(len(shown) - 0.5, -0.5))
    if truth != UNKNOWN:
        axes.axhline(places[truth], color=FOREGROUND, linewidth=0.6, alpha=0.5, linestyle=(0, (1, 2)))
    axes.tick_params(length=0)
    axes.grid(visible=False)


# Confident mistakes -----------------------------------------------------------------------------------------------


def same_labels(run: RunRecord, other: RunRecord) -> bool:
    """Whether two runs were given the same labels on the same images."""
    if run.condition != other.condition:
        return False
    ours, theirs = run.split(), other.split()
    return all(torch.equal(getattr(ours, name), getattr(theirs, name)) for name in ("labeled", "labels", "unlabeled"))


def pair_of(rivals: Sequence[RunRecord], runs: Sequence[RunRecord]) -> tuple[RunRecord, RunRecord]:
    """A rival and one of the runs, the first two that were given the same labels."""
    pairs = ((rival, run) for run in runs for rival in rivals if same_labels(run, rival))
    if pair := next(pairs, None):
        return pair
    names = ", ".join(run.name for run in runs)
    raise AggMatchError(
        f"Confident mistakes of FixMatch are not held against {names}: no run of FixMatch here has the same labels."
    )


def corrected_mistakes(rival: PseudoLabeled, found: PseudoLabeled, threshold: float) -> tuple[Tensor, Tensor]:
    """Confident mistakes of the rival, and those of them that `found` has right, most confident first; positions."""
    confidence_N = rival.confidence
    order_N = confidence_N.argsort(descending=True, stable=True)
    mistakes = order_N[(~rival.right & (confidence_N >= threshold))[order_N]]
    return mistakes, mistakes[found.right[mistakes]]


def spread(positions: Tensor, kind_N: Tensor) -> Tensor:
    """The same positions, the first of every kind before the second of any."""
    seen: Counter[int] = Counter()
    turns = []
    for kind in kind_N[positions].tolist():
        turns.append(seen[kind])
        seen[kind] += 1
    return positions[torch.tensor(turns, dtype=torch.long).argsort(stable=True)]


def mistakes_panel(rival: RunRecord, run: RunRecord) -> Panel:
    """Confident mistakes of FixMatch that AggMatch has right, as pictures."""
    theirs, ours = (pseudo_labels_at(each, each.snapshots[-1]) for each in (rival, run))
    threshold = rival.settings.method.threshold  # type: ignore[attr-defined]
    mistakes, corrected = corrected_mistakes(theirs, ours, threshold)
    if not len(corrected):
        raise AggMatchError(f"There are no confident mistakes of {rival.name} that {run.name} has right.")
    pair_N = theirs.truth * theirs.probs.shape[1] + theirs.probs.argmax(1)
    spoilt = int((theirs.right & (theirs.confidence >= threshold) & ~ours.right).sum())
    return Panel(
        f"mistakes-{slug(run.name)}",
        f"Confident mistakes of FixMatch, and {run.name}",
        f"Of {len(theirs.index):,} unlabelled training images, FixMatch is sure of a wrong class (probability at least "
        f"{threshold:g}) for {len(mistakes)}; AggMatch has {len(corrected)} of these right, and is wrong on {spoilt} "
        f"of which FixMatch is rightly sure. Shown: the corrected ones of which FixMatch is surest, one of every pair "
        f"of classes in turn, with its probability and AggMatch's consensus c̄. {run.condition}, fold {run.fold}, the "
        f"same labels for both; steps {theirs.step:,} and {ours.step:,}; plain images, online networks.",
        draw_mistakes(theirs, ours, spread(corrected, pair_N)[:MISTAKES].tolist(), run.data()),
    )


@house_style()
def draw_mistakes(theirs: PseudoLabeled, ours: PseudoLabeled, positions: Sequence[int], data: DataSet) -> Figure:
    """A column for each image: the picture, the truth and the two pseudo labels."""
    figure = new_figure(1.05 * len(positions) + 1.1, 1.7)
    places = figure.subplots(1, len(positions), squeeze=False)[0]
    for axes, position in zip(places, positions, strict=True):
        axes.set_anchor("N")
        picture(axes, data.train.pixels[theirs.index[position]].numpy())
        mistaken, corrected = (
            f"{data.classes[int(found.probs[position].argmax())]} ({found.confidence[position]:.2f})"
            for found in (theirs, ours)
        )
        below(axes, data.classes[int(theirs.truth[position])], 1)
        below(axes, mistaken, 2, WRONG)
        below(axes, corrected, 3, RIGHT)
    for line, text in enumerate(("truth", "FixMatch", "AggMatch"), 1):
        below(places[0], text, line, heading=True)
    return figure


def below(axes: Axes, text: str, line: int, color: str = FOREGROUND, *, heading: bool = False) -> None:
    """A line of text under a picture, or to the left of that as the heading of the line."""
    x, side, weight = (-0.15, "right", "bold") if heading else (0.5, "center", "normal")
    words = axes.annotate(text, (x, 0), (0, 4 - 15 * line), "axes fraction", "offset points", color=color)
    words.set(ha=side, va="center", size=8.5, weight=weight)
