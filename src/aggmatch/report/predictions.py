"""What the trained network gets right and wrong, and how far confidences can be trusted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor
from textwrap import fill as wrap
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from torch import Tensor

from aggmatch.evaluation import Evaluation
from aggmatch.report.figure import (
    FOREGROUND,
    MANY,
    WRONG,
    Panel,
    heat_map,
    house_style,
    legend,
    name_classes,
    new_figure,
    slug,
)
from aggmatch.report.gaps import Gaps
from aggmatch.report.pseudo_labels import PseudoLabeled, pseudo_labels_at
from aggmatch.report.style import Look, looks
from aggmatch.report.test_results import discrepancy, tried
from aggmatch.runs.stored import RunRecord, conditions, first_folds, grouped

CONFUSED_PAIRS = (("cat", "dog"), ("deer", "horse"), ("airplane", "bird"), ("automobile", "truck"))
"""Classes that the paper finds mistaken for each other."""
BINS = 15
"""Bins of equal width in a reliability diagram."""
FEW = 10
"""A bin with fewer images than this is drawn hollow."""


def panels(runs: Sequence[RunRecord]) -> Iterator[Panel]:
    """Accuracy by class, confusion and calibration, as far as runs are finished or have snapshots."""
    gaps, by_run = Gaps(), looks(runs)
    for condition, part in conditions([run for run in runs if run.summary]).items():
        yield class_accuracy_panel(condition, part, by_run)
    yield from gaps.each(confusion_panel, [run for run in first_folds(runs) if run.summary])
    if measured := list(gaps.each(calibration, [run for run in first_folds(runs) if run.snapshots])):
        yield calibration_panel(measured, by_run)
    gaps.tell()


def pairs_among(classes: Sequence[str]) -> list[tuple[int, int]]:
    """Numbers of the classes of each confused pair that is there."""
    return [
        (classes.index(first), classes.index(second))
        for first, second in CONFUSED_PAIRS
        if first in classes and second in classes
    ]


# Accuracy by class ------------------------------------------------------------------------------------------------


def class_accuracy_panel(condition: str, runs: Sequence[RunRecord], by_run: dict[RunRecord, Look]) -> Panel:
    """Accuracy within each class of all runs that may be compared."""
    groups = grouped(runs)
    accuracy = {name: class_accuracies(group) for name, group in groups.items()}
    classes = list((runs[0].summary or {})["class_accuracy"])
    order = class_order(classes, np.mean([values.mean(0) for values in accuracy.values()], axis=0))
    repeated = any(len(group) > 1 for group in groups.values())
    networks = " and ".join(sorted({run.settings.train.evaluated for run in runs}))
    listed = ", ".join(f"{name} (n = {len(group)})" for name, group in groups.items())
    several = " A mark is the mean over runs, a bar reaches from the lowest to the highest." if repeated else ""
    worst = f" Shown: the {MANY} of {len(classes)} classes with the lowest mean." if len(classes) > MANY else ""
    pairs = " Pairs that the paper finds mistaken for each other are shaded." if pairs_among(classes) else ""
    return Panel(
        f"class-accuracy-{slug(condition)}",
        f"Accuracy by class, {condition}",
        f"Test accuracy within each class of the saved model ({networks} network, last step): {listed}.{several}"
        f"{worst}{pairs}",
        draw_class_accuracy(accuracy, {name: by_run[group[0]] for name, group in groups.items()}, classes, order),
    )


def class_accuracies(runs: Sequence[RunRecord]) -> NDArray[np.float64]:
    """Accuracy in percent, (runs, classes)."""
    return np.array([list(run.summary["class_accuracy"].values()) for run in runs if run.summary])


def class_order(classes: Sequence[str], mean: NDArray[np.float64]) -> list[int]:
    """Classes in the order shown: members of confused pairs side by side; of many classes only the worst."""
    if len(classes) > MANY:
        return [int(number) for number in mean.argsort()[:MANY]]
    paired = [number for pair in pairs_among(classes) for number in pair]
    return paired + [number for number in range(len(classes)) if number not in paired]


@house_style()
def draw_class_accuracy(
    accuracy: dict[str, NDArray[np.float64]], by_name: dict[str, Look], classes: Sequence[str], order: Sequence[int]
) -> Figure:
    """A row for each class, a dot for each group of runs."""
    figure = new_figure(6.4, 0.9 + 0.27 * len(order))
    axes = figure.subplots()
    places = np.arange(len(order))
    if len(order) == len(classes):
        for number in range(len(pairs_among(classes))):
            axes.axhspan(2 * number - 0.45, 2 * number + 1.45, color=FOREGROUND, alpha=0.06, linewidth=0)
    handles = {}
    for number, (name, values) in enumerate(accuracy.items()):
        shown = values[:, order]
        row = places + 0.5 * ((number + 0.5) / len(accuracy) - 0.5)
        color, _, mark = by_name[name]
        axes.hlines(row, shown.min(0), shown.max(0), color=color, linewidth=1)
        (handles[name],) = axes.plot(shown.mean(0), row, mark, color=color, markersize=5)
    axes.set_yticks(places, [classes[number] for number in order])
    axes.invert_yaxis()
    axes.set(xlabel="accuracy, %")
    legend(figure, handles)
    return figure


# Confusion --------------------------------------------------------------------------------------------------------


def confusion_panel(run: RunRecord) -> Panel:
    """True against predicted classes of a finished run's model."""
    result, classes = tried(run), run.data().classes
    pairs = " Frames mark pairs that the paper finds mistaken for each other." if pairs_among(classes) else ""
    return Panel(
        f"confusion-{slug(run.name)}",
        f"Confusion, {run.name}",
        f"Share of the test images of a class (rows) by predicted class (columns), in percent; {len(result.labels):,} "
        f"images, {result.accuracy:.2f} % right. {run.describe()}, {run.settings.train.evaluated} network, last "
        f"step.{pairs} {discrepancy(run)}".rstrip(),
        draw_confusion(confusion_shares(result), classes),
    )


def confusion_shares(result: Evaluation) -> NDArray[np.float64]:
    """Rows of the confusion matrix in percent of the true class."""
    counts = result.confusion.double()
    return (100 * counts / counts.sum(1, keepdim=True).clamp(min=1)).numpy()


@house_style()
def draw_confusion(shares: NDArray[np.float64], classes: Sequence[str]) -> Figure:
    """Right ones in one colour, mistakes in another."""
    figure = new_figure(4.9, 4.7)
    axes = figure.subplots()
    right = np.eye(len(classes), dtype=bool)
    highest = np.where(right, 100, max(25.0, float(shares[~right].max())))
    heat_map(axes, np.where(right, shares / highest, 0))
    heat_map(axes, np.where(right, 0, shares / highest), WRONG)
    name_classes(axes, classes)
    axes.set(xlabel="predicted class", ylabel="true class")
    if len(classes) <= MANY:
        for (row, column), share in np.ndenumerate(shares):
            if share:
                color = "white" if share > 0.75 * highest[row, column] else FOREGROUND
                text = f"{floor(share + 0.5)}" if share >= 0.5 else "<½"  # 0.5 is 1, not the nearest even number
                axes.text(column, row, text, ha="center", va="center", size=7, color=color)
    for first, second in pairs_among(list(classes)):
        for row, column in ((first, second), (second, first)):
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=FOREGROUND, linewidth=1.2))
    return figure


# Calibration ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reliability:
    """Confidence against accuracy in bins of equal width; bins without an image are left out."""

    confidence: NDArray[np.float64]
    """Mean confidence of each bin."""
    accuracy: NDArray[np.float64]
    """Share of right ones in each bin."""
    count: NDArray[np.int64]
    """Images of each bin."""

    @property
    def error(self) -> float:
        """Expected calibration error: Σ_bins n_bin/n · |accuracy − confidence|."""
        gap = np.abs(self.accuracy - self.confidence)
        return float((self.count * gap).sum() / max(self.count.sum(), 1))


def reliability(confidence_N: Tensor, right_N: Tensor, bins: int = BINS) -> Reliability:
    """Reliability of confidences in [0, 1]; bin k holds those in (k/bins, (k + 1)/bins], the first 0 too."""
    bin_N = (confidence_N.double() * bins).ceil().long().sub(1).clamp(0, bins - 1)
    count = torch.bincount(bin_N, minlength=bins)
    used = count > 0
    means = [torch.bincount(bin_N, values.double(), bins)[used] / count[used] for values in (confidence_N, right_N)]
    return Reliability(means[0].numpy(), means[1].numpy(), count[used].numpy())


class Calibration(NamedTuple):
    """Reliability of the pseudo labels of a run's last snapshot."""

    run: RunRecord
    step: int
    images: int
    measured: dict[str, Reliability]
    """By kind of confidence."""


def calibration(run: RunRecord) -> Calibration:
    """Measure the pseudo labels of a run's last snapshot."""
    found = pseudo_labels_at(run, run.snapshots[-1])
    return Calibration(run, found.step, len(found.index), reliabilities(found))


def calibration_panel(found: Sequence[Calibration], by_run: dict[RunRecord, Look]) -> Panel:
    """Reliability of the pseudo labels of several runs beside each other."""
    told = "; ".join(
        f"{each.run.describe()}, step {each.step:,}, {each.images:,} unlabelled training images" for each in found
    )
    cells = [
        (f"{wrap(each.run.name, 25)}\n{name}" if len(found) > 1 else name, reliability, by_run[each.run].color)
        for each in sorted(found, key=lambda each: -len(each.measured))  # whole rows first
        for name, reliability in each.measured.items()
    ]
    return Panel(
        "calibration",
        f"Calibration of pseudo labels, {found[0].run.name}" if len(found) == 1 else "Calibration of pseudo labels",
        f"Confidence against the share of right pseudo labels, in {BINS} bins of equal width, hollow where a bin holds "
        f"fewer than {FEW}; below, the share of images in each. ECE: expected calibration error. {told}; plain images, "
        f"online network.",
        draw_calibration(cells),
    )


def reliabilities(found: PseudoLabeled) -> dict[str, Reliability]:
    """Reliability of the own prediction and, where there is a queue, of the refined one and of the consensus."""
    own = reliability(found.own.amax(1), found.own.argmax(1) == found.truth)
    if found.aggregated is None:
        return {"own prediction, max p": own}
    right = found.aggregated.probs.argmax(1) == found.truth
    return {
        "own prediction, max p": own,
        "refined, max p̄": reliability(found.aggregated.probs.amax(1), right),
        "consensus, c̄": reliability(found.aggregated.confidence, right),
    }


@house_style()
def draw_calibration(cells: Sequence[tuple[str, Reliability, str]]) -> Figure:
    """A reliability diagram over a histogram for each title, reliability and colour, in rows of three or four."""
    columns = len(cells) if len(cells) <= 4 else 3
    rows = -(-len(cells) // columns)
    lines = max(title.count("\n") for title, _, _ in cells)
    figure = new_figure(2.3 * columns + 0.5, (3.3 + 0.15 * lines) * rows)
    places = figure.subplots(2 * rows, columns, squeeze=False, sharex=True, height_ratios=(4, 1) * rows)
    for number, (above, below) in enumerate(zip(places[::2].flat, places[1::2].flat, strict=True)):
        if number < len(cells):
            draw_reliability(above, below, *cells[number])
            above.tick_params(labelleft=number % columns == 0)
            below.tick_params(labelleft=number % columns == 0, labelbottom=True)
        else:
            above.set_axis_off()
            below.set_axis_off()
    for above, below in zip(places[::2, 0], places[1::2, 0], strict=True):
        above.set_ylabel("share right")
        below.set_ylabel("images, %")
    return figure


def draw_reliability(above: Axes, below: Axes, title: str, shown: Reliability, color: str) -> None:
    """A reliability diagram and, below, the histogram of its bins."""
    above.plot([0, 1], [0, 1], color=FOREGROUND, linewidth=0.8, linestyle=(0, (4, 3)), alpha=0.6)
    above.vlines(shown.confidence, shown.confidence, shown.accuracy, color=color, linewidth=1, alpha=0.7)
    for few, fill in ((shown.count < FEW, "none"), (shown.count >= FEW, color)):
        above.scatter(shown.confidence[few], shown.accuracy[few], s=26, facecolor=fill, edgecolor=color, zorder=3)
    above.set(title=title, xlim=(0, 1.03), ylim=(-0.03, 1.03), xticks=(0, 0.5, 1))
    above.text(0.04, 0.93, f"ECE {shown.error:.3f}", size=8.5)
    below.bar(shown.confidence, 100 * shown.count / shown.count.sum(), width=0.8 / BINS, color=color)
    below.set(xlabel="confidence", ylim=(0, 100))
