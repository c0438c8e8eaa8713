"""Test accuracy within each class, of all runs under one condition."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure as Drawing
from numpy.typing import NDArray

from aggmatch.report.classes import pairs_among
from aggmatch.report.figure import MANY, PHONE, Panel, Plot, house_style, legend, new_figure, short, slug
from aggmatch.report.figures import Figure
from aggmatch.report.style import FOREGROUND, Look, looks
from aggmatch.runs.stats import conditions, grouped
from aggmatch.runs.stored import StoredRun


def draw(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """One panel per condition, of its finished runs."""
    by_run = looks(runs)
    for condition, part in conditions([run for run in runs if run.class_accuracy]).items():
        yield class_accuracy_panel(condition, part, by_run)


def class_accuracy_panel(condition: str, runs: Sequence[StoredRun], by_run: Mapping[StoredRun, Look]) -> Panel:
    """Accuracy within each class of runs that can be compared."""
    groups = grouped(runs)
    accuracy = {name: class_accuracies(group) for name, group in groups.items()}
    classes = list(runs[0].class_accuracy)
    order = class_order(classes, np.mean([values.mean(0) for values in accuracy.values()], axis=0))
    repeated = any(len(group) > 1 for group in groups.values())
    networks = " and ".join(sorted({run.settings.train.evaluated for run in runs}))
    listed = ", ".join(f"{name} (n = {len(group)})" for name, group in groups.items())
    several = " A mark is the mean over runs; its bar spans from the lowest to the highest." if repeated else ""
    worst = f" Shown: the {MANY} of {len(classes)} classes with the lowest mean." if len(classes) > MANY else ""
    pairs = " Pairs that the paper names as often confused are shaded." if pairs_among(classes) else ""
    look_of = {name: by_run[group[0]] for name, group in groups.items()}
    return Panel(
        f"class-accuracy-{slug(condition)}",
        f"Accuracy by class, {condition}",
        f"Test accuracy within each class of the saved model ({networks} network, last step): {listed}.{several}"
        f"{worst}{pairs}",
        [Plot("", draw_class_accuracy(accuracy, look_of, classes, order))],
    )


def class_accuracies(runs: Sequence[StoredRun]) -> NDArray[np.float64]:
    """Accuracy in percent, (runs, classes)."""
    return np.array([list(run.class_accuracy.values()) for run in runs])


def class_order(classes: Sequence[str], mean: NDArray[np.float64]) -> list[int]:
    """The classes to show in order: both of a confused pair beside each other; of many classes only the worst."""
    if len(classes) > MANY:
        return [int(number) for number in mean.argsort()[:MANY]]
    paired = [number for pair in pairs_among(classes) for number in pair]
    return paired + [number for number in range(len(classes)) if number not in paired]


@house_style()
def draw_class_accuracy(
    accuracy: Mapping[str, NDArray[np.float64]],
    look_of: Mapping[str, Look],
    classes: Sequence[str],
    order: Sequence[int],
) -> Drawing:
    """A row for each class, a mark for each group of runs."""
    figure = new_figure(PHONE, 0.9 + 0.27 * len(order))
    axes = figure.subplots()
    places = np.arange(len(order))
    if len(order) == len(classes):
        for number in range(len(pairs_among(classes))):
            axes.axhspan(2 * number - 0.45, 2 * number + 1.45, color=FOREGROUND, alpha=0.06, linewidth=0)
    handles = {}
    for number, (name, values) in enumerate(accuracy.items()):
        shown = values[:, order]
        row = places + 0.5 * ((number + 0.5) / len(accuracy) - 0.5)
        color, _, mark = look_of[name]
        axes.hlines(row, shown.min(0), shown.max(0), color=color, linewidth=1)
        (handles[name],) = axes.plot(shown.mean(0), row, mark, color=color, markersize=5)
    axes.set_yticks(places, [short(classes[number]) for number in order])
    axes.invert_yaxis()
    axes.set(xlabel="accuracy, %")
    legend(figure, handles)
    return figure


FIGURE = Figure(draw, chapter="predictions", needs="a finished run", order=10, quick=True)
