"""Figures of predictions: accuracy by class, confusion, and how far confidences can be trusted."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import floor

import numpy as np
import torch
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from torch import Tensor

from aggmatch.errors import AggMatchError
from aggmatch.evaluation import Evaluation
from aggmatch.report.figure import (
    MANY,
    PHONE,
    Look,
    Panel,
    Plot,
    each,
    heat_map,
    house_style,
    legend,
    looks,
    name_classes,
    new_figure,
    pairs_of,
    short_names,
    slug,
)
from aggmatch.report.figures import Figure
from aggmatch.report.pseudo_labels import PseudoLabeled, pseudo_labels_at, with_snapshots
from aggmatch.report.style import FOREGROUND, WRONG
from aggmatch.report.test_results import discrepancy, test_predictions
from aggmatch.runs.stats import conditions, first_of_groups, grouped, tested_classes
from aggmatch.runs.stored import StoredRun

# Class accuracy -------------------------------------------------------------------------------------------------------


def class_accuracy(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """Test accuracy within each class, of all runs under one condition.

    One panel per condition, of its finished runs.
    """
    by_run = looks(runs)
    for condition, part in conditions([run for run in runs if run.class_accuracy]).items():
        yield class_accuracy_panel(condition, part, by_run)


def class_accuracy_panel(condition: str, runs: Sequence[StoredRun], by_run: Mapping[StoredRun, Look]) -> Panel:
    """Accuracy within each class of runs that can be compared."""
    groups, classes = grouped(runs), tested_classes(runs)
    accuracy = {
        name: np.array([[run.class_accuracy[each] for each in classes] for run in group])
        for name, group in groups.items()
    }
    paired = pairs_of(runs[0], classes)
    order = class_order(classes, np.mean([values.mean(0) for values in accuracy.values()], axis=0), paired)
    repeated = any(len(group) > 1 for group in groups.values())
    networks = " and ".join(sorted({run.settings.train.evaluated for run in runs}))
    listed = ", ".join(f"{name} (n = {len(group)})" for name, group in groups.items())
    several = " A mark is the mean over runs; its bar spans from the lowest to the highest." if repeated else ""
    worst = f" Shown: the {MANY} of {len(classes)} classes with the lowest mean." if len(classes) > MANY else ""
    pairs = " Pairs that the paper names as often confused are shaded." if paired else ""
    look_of = {name: by_run[group[0]] for name, group in groups.items()}
    return Panel(
        f"class-accuracy-{slug(condition)}",
        f"Accuracy by class, {condition}",
        f"Test accuracy within each class of the saved model ({networks} network, last step): {listed}.{several}"
        f"{worst}{pairs}",
        [Plot("", draw_class_accuracy(accuracy, look_of, classes, order, len(paired)))],
    )


def class_order(classes: Sequence[str], mean: NDArray[np.float64], pairs: Sequence[tuple[int, int]]) -> list[int]:
    """The classes to show in order: both of a confused pair next to each other; of many classes only the worst."""
    if len(classes) > MANY:
        return [int(number) for number in mean.argsort()[:MANY]]
    paired = [number for pair in pairs for number in pair]
    return paired + [number for number in range(len(classes)) if number not in paired]


@house_style()
def draw_class_accuracy(
    accuracy: Mapping[str, NDArray[np.float64]],
    look_of: Mapping[str, Look],
    classes: Sequence[str],
    order: Sequence[int],
    pairs: int = 0,
) -> Drawing:
    """A row for each class, a mark for each group of runs. pairs: number of pairs at the start, to be shaded."""
    figure = new_figure(PHONE, 0.9 + 0.27 * len(order))
    axes = figure.subplots()
    places = np.arange(len(order))
    if len(order) == len(classes):
        for number in range(pairs):
            axes.axhspan(2 * number - 0.45, 2 * number + 1.45, color=FOREGROUND, alpha=0.06, linewidth=0)
    handles = {}
    for number, (name, values) in enumerate(accuracy.items()):
        shown = values[:, order]
        row = places + 0.5 * ((number + 0.5) / len(accuracy) - 0.5)
        color, _, mark = look_of[name]
        axes.hlines(row, shown.min(0), shown.max(0), color=color, linewidth=1)
        (handles[name],) = axes.plot(shown.mean(0), row, mark, color=color, markersize=5)
    axes.set_yticks(places, short_names([classes[number] for number in order]))
    axes.invert_yaxis()
    axes.set(xlabel="accuracy, %")
    legend(figure, handles)
    return figure


# Confusion ------------------------------------------------------------------------------------------------------------


NUMBERED = 12
"""Most classes whose squares have room for a number."""


def confusion(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """Confusion matrix of each run on the test images.

    One panel for the first run of each group, if it is finished or has a checkpoint.
    """
    yield from each(confusion_panel, [run for run in first_of_groups(runs) if run.has_model])


def confusion_panel(run: StoredRun) -> Panel:
    """True against predicted classes of a run's model."""
    result, classes = test_predictions(run), run.data().classes
    paired = pairs_of(run, classes)
    pairs = " Frames mark pairs that the paper names as often confused." if paired else ""
    return Panel(
        f"confusion-{slug(run.name)}",
        f"Confusion, {run.name}",
        f"Share of the test images of a class (rows) by predicted class (columns), in percent; {len(result.labels):,} "
        f"images, {result.accuracy:.2f} % right. {run.describe()}, {run.settings.train.evaluated} network, "
        f"{run.model_words}.{pairs} {discrepancy(run)}".rstrip(),
        [Plot("", draw_confusion(confusion_shares(result), classes, paired))],
    )


def confusion_shares(result: Evaluation) -> NDArray[np.float64]:
    """Rows of the confusion matrix in percent of the true class, (Y, Y)."""
    counts = result.confusion.double()
    return (100 * counts / counts.sum(1, keepdim=True).clamp(min=1)).numpy()


@house_style()
def draw_confusion(
    shares: NDArray[np.float64], classes: Sequence[str], pairs: Sequence[tuple[int, int]] = ()
) -> Drawing:
    """Right predictions on the diagonal in one colour, mistakes in another. pairs: of classes, to be framed."""
    figure = new_figure(PHONE, 3.6)
    axes = figure.subplots()
    right = np.eye(len(classes), dtype=bool)
    highest = np.where(right, 100, max(25.0, float(shares[~right].max())))
    heat_map(axes, np.where(right, shares / highest, 0))
    heat_map(axes, np.where(right, 0, shares / highest), WRONG)
    name_classes(axes, classes)
    axes.set(xlabel="predicted class", ylabel="true class")
    if len(classes) <= NUMBERED:
        for (row, column), share in np.ndenumerate(shares):
            if share:
                color = "white" if share > 0.75 * highest[row, column] else FOREGROUND
                text = f"{floor(share + 0.5)}" if share >= 0.5 else "<½"  # 0.5 is 1, not the nearest even number
                axes.text(column, row, text, ha="center", va="center", size=7, color=color)
    for first, second in pairs:
        for row, column in ((first, second), (second, first)):
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=FOREGROUND, linewidth=1.2))
    return figure


# Calibration ----------------------------------------------------------------------------------------------------------


BINS = 15
"""Bins of equal width in a reliability diagram."""
FEW = 10
"""A bin with fewer images than this is drawn hollow."""


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


def calibration(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """Confidence of pseudo labels against the share of right ones.

    One panel of all runs that have snapshots, the first of each group.
    """
    found: dict[StoredRun, PseudoLabeled] = {}
    problem = None
    try:
        found.update(each(lambda run: (run, pseudo_labels_at(run, run.snapshots[-1])), with_snapshots(runs)))
    except AggMatchError as error:
        problem = error
    if found:
        yield calibration_panel(found, {run: look.color for run, look in looks(runs).items()})
    if problem:
        raise problem


def reliabilities(found: PseudoLabeled) -> dict[str, Reliability]:
    """Reliability of the own prediction and, of a method with votes, of the refined one and of the consensus."""
    measured = {"own prediction, max p": reliability(found.own.amax(1), found.own.argmax(1) == found.truth)}
    if found.aggregated:
        right = found.aggregated.probs.argmax(1) == found.truth
        measured["refined, max p̄"] = reliability(found.aggregated.probs.amax(1), right)
        measured["consensus, c̄"] = reliability(found.aggregated.confidence, right)
    return measured


def reliability(confidence_N: Tensor, right_N: Tensor, bins: int = BINS) -> Reliability:
    """Reliability of confidences in [0, 1]; bin k holds those in (k/bins, (k + 1)/bins], and the first one also 0."""
    bin_N = (confidence_N.double() * bins).ceil().long().sub(1).clamp(0, bins - 1)
    count = torch.bincount(bin_N, minlength=bins)
    used = count > 0
    means = [torch.bincount(bin_N, values.double(), bins)[used] / count[used] for values in (confidence_N, right_N)]
    return Reliability(means[0].numpy(), means[1].numpy(), count[used].numpy())


def calibration_panel(found: Mapping[StoredRun, PseudoLabeled], colors: Mapping[StoredRun, str]) -> Panel:
    """One plot per run and kind of confidence."""
    listed = "; ".join(
        f"{run.describe()}, step {labels.step:,}, {len(labels.index):,} unlabelled training images"
        for run, labels in found.items()
    )
    names = {run: run.name if len(found) > 1 else "" for run in found}
    return Panel(
        "calibration",
        "Calibration of pseudo labels" + (f", {next(iter(found)).name}" if len(found) == 1 else ""),
        f"Confidence against the share of right pseudo labels, in {BINS} bins of equal width, hollow if a bin holds "
        f"fewer than {FEW}; below, the share of images in each bin. ECE: expected calibration error. {listed}; plain "
        f"images, online network.",
        [
            Plot(slug(f"{names[run]} {kind.split(',')[0]}"), draw_reliability(kind, measured, colors[run]), names[run])
            for run, labels in found.items()
            for kind, measured in reliabilities(labels).items()
        ],
    )


@house_style()
def draw_reliability(title: str, shown: Reliability, color: str) -> Drawing:
    """A reliability diagram above the histogram of its bins."""
    figure = new_figure(2.6, 3.3)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    above.plot([0, 1], [0, 1], color=FOREGROUND, linewidth=0.8, linestyle=(0, (4, 3)), alpha=0.6)
    above.vlines(shown.confidence, shown.confidence, shown.accuracy, color=color, linewidth=1, alpha=0.7)
    for few, fill in ((shown.count < FEW, "none"), (shown.count >= FEW, color)):
        above.scatter(shown.confidence[few], shown.accuracy[few], s=26, facecolor=fill, edgecolor=color, zorder=3)
    above.set(title=title, xlim=(0, 1.03), ylim=(-0.03, 1.03), xticks=(0, 0.5, 1), ylabel="share right")
    above.text(0.99, 0.03, f"ECE {shown.error:.3f}", size=8.5, ha="right")
    below.bar(shown.confidence, 100 * shown.count / shown.count.sum(), width=0.8 / BINS, color=color)
    below.set(xlabel="confidence", ylabel="images, %", ylim=(0, 100))
    return figure


FIGURES = {
    "class_accuracy": Figure(class_accuracy, chapter="predictions", needs="a finished run", order=10, quick=True),
    "confusion": Figure(confusion, chapter="predictions", needs="a model or checkpoint, and the data set", order=20),
    "calibration": Figure(calibration, chapter="predictions", needs="snapshots", order=30),
}
