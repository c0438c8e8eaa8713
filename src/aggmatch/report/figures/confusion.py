"""Confusion matrix of each finished run on the test images."""

from collections.abc import Iterator, Sequence
from math import floor

import numpy as np
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from aggmatch.evaluation import Evaluation
from aggmatch.report.classes import name_classes, pairs_among
from aggmatch.report.figure import PHONE, Panel, Plot, each, heat_map, house_style, new_figure, slug
from aggmatch.report.figures import Figure
from aggmatch.report.style import FOREGROUND, WRONG
from aggmatch.report.test_results import discrepancy, test_predictions
from aggmatch.runs.stats import first_of_groups
from aggmatch.runs.stored import StoredRun

NUMBERED = 12
"""Most classes whose squares have room for a number."""


def draw(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """One panel for the first run of each group, if it is finished."""
    yield from each(confusion_panel, [run for run in first_of_groups(runs) if run.finished])


def confusion_panel(run: StoredRun) -> Panel:
    """True against predicted classes of a finished run's model."""
    result, classes = test_predictions(run), run.data().classes
    pairs = " Frames mark pairs that the paper names as often confused." if pairs_among(classes) else ""
    return Panel(
        f"confusion-{slug(run.name)}",
        f"Confusion, {run.name}",
        f"Share of the test images of a class (rows) by predicted class (columns), in percent; {len(result.labels):,} "
        f"images, {result.accuracy:.2f} % right. {run.describe()}, {run.settings.train.evaluated} network, last "
        f"step.{pairs} {discrepancy(run)}".rstrip(),
        [Plot("", draw_confusion(confusion_shares(result), classes))],
    )


def confusion_shares(result: Evaluation) -> NDArray[np.float64]:
    """Rows of the confusion matrix in percent of the true class, (Y, Y)."""
    counts = result.confusion.double()
    return (100 * counts / counts.sum(1, keepdim=True).clamp(min=1)).numpy()


@house_style()
def draw_confusion(shares: NDArray[np.float64], classes: Sequence[str]) -> Drawing:
    """Right predictions on the diagonal in one colour, mistakes in another."""
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
    for first, second in pairs_among(classes):
        for row, column in ((first, second), (second, first)):
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=FOREGROUND, linewidth=1.2))
    return figure


FIGURE = Figure(draw, chapter="predictions", needs="a finished run and its data set", order=20)
