"""What a run's log tells: accuracy, losses, quality of the pseudo labels and fill of the queue over the steps."""

from collections.abc import Iterator, Sequence
from textwrap import fill as wrap
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator
from numpy.typing import NDArray

from aggmatch.analysis.panel import (
    ACCENT,
    LINES,
    MANY,
    Panel,
    house_style,
    legend,
    method_color,
    new_figure,
    shades,
    slug,
)
from aggmatch.analysis.runs import RunRecord, conditions, first_folds, grouped

Curve = tuple[list[int], list[float]]


class Quantity(NamedTuple):
    """A value of the log and how it is drawn."""

    key: str
    title: str
    scale: float = 1.0


ACCURACY = (
    Quantity("accuracy_average", "Averaged network, %"),
    Quantity("accuracy_online", "Network in training, %"),
)
LOSSES = (
    Quantity("loss", "Loss"),
    Quantity("loss_labeled", "Loss, labelled images"),
    Quantity("loss_unlabeled", "Loss, unlabelled images"),
)
PSEUDO_LABELS = (
    Quantity("pseudo_precision", "Precision, %", 100),
    Quantity("pseudo_recall", "Recall, %", 100),
    Quantity("pseudo_coverage", "Coverage, %", 100),
    Quantity("confidence", "Mean confidence"),
)


def panels(runs: Sequence[RunRecord]) -> Iterator[Panel]:
    """Curves of everything that the runs have logged."""
    described = describe(runs)
    for name, title, quantities, words in (
        ("accuracy", "Test accuracy", ACCURACY, "Accuracy on all test images."),
        ("losses", "Losses", LOSSES, "Training losses, means between two log steps."),
        (
            "pseudo-labels",
            "Pseudo labels in training",
            PSEUDO_LABELS,
            "Pseudo labels of unlabelled images against the truth, which training does not see; each counts with its "
            "weight in the loss. Precision: share of right ones among them; recall: right ones over all images; "
            "coverage: mean weight. Confidence is each method's own, before any threshold. Means between log steps.",
        ),
    ):
        present = [quantity for quantity in quantities if any(curve(run, quantity)[0] for run in runs)]
        if present:
            yield Panel(name, title, f"{words} {described}", draw_curves(runs, present))
    for run in first_folds(runs):
        if fill := queue_fill(run):
            yield queue_panel(run, *fill)


def describe(runs: Sequence[RunRecord]) -> str:
    """The runs behind the curves, and what lines mean where there are several of a kind."""
    listed = "; ".join(
        f"{condition}: "
        + ", ".join(
            f"{name} (fold{'s' if len(group) > 1 else ''} {', '.join(str(run.fold) for run in group)})"
            for name, group in grouped(part).items()
        )
        for condition, part in conditions(runs).items()
    )
    several = any(len(group) > 1 for part in conditions(runs).values() for group in grouped(part).values())
    return listed + "." + (" Thin lines are single runs, thick ones their mean." if several else "")


# Lines ------------------------------------------------------------------------------------------------------------


def curve(run: RunRecord, quantity: Quantity) -> Curve:
    """Steps and values of a quantity where the run has logged it."""
    logged = [
        (record["step"], quantity.scale * record[quantity.key]) for record in run.records if quantity.key in record
    ]
    return [step for step, _ in logged], [value for _, value in logged]


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Mean over runs at the steps that all of them have logged."""
    tables = [dict(zip(*each, strict=True)) for each in curves]
    steps = [step for step in curves[0][0] if all(step in table for table in tables)]
    return steps, [float(np.mean([table[step] for table in tables])) for step in steps]


@house_style()
def draw_curves(runs: Sequence[RunRecord], quantities: Sequence[Quantity]) -> Figure:
    """One small plot a quantity and condition (data set, labels, noise); one line a run, one colour a method."""
    parts = conditions(runs)
    figure, places = lay_out(list(parts), quantities)
    handles: dict[str, Any] = {}
    for (condition, quantity), axes in places.items():
        handles |= draw_groups(axes, parts[condition], quantity)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        if quantity in LOSSES and all(value > 0 for run in runs for value in curve(run, quantity)[1]):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
            axes.yaxis.set_major_formatter("{x:g}")  # the usual one needs mathematical text, which panels do without
            axes.yaxis.set_minor_formatter("")
    legend(figure, handles)
    return figure


def lay_out(
    conditions: Sequence[str], quantities: Sequence[Quantity]
) -> tuple[Figure, dict[tuple[str, Quantity], Axes]]:
    """A figure with a plot for each condition and quantity: conditions side by side, quantities below each other.

    With one condition the quantities share the page instead.
    """
    if len(conditions) == 1:
        columns = 2 if len(quantities) == 4 else len(quantities)
        rows = -(-len(quantities) // columns)
        figure = new_figure(max(3.2 * columns, 4.2), 2.1 * rows + 0.6)
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=quantities[0] in ACCURACY)
        places = {(conditions[0], quantity): axes for quantity, axes in zip(quantities, grid.flat, strict=True)}
        for (_, quantity), axes in places.items():
            axes.set_title(quantity.title)
    else:
        rows, columns = len(quantities), len(conditions)
        figure = new_figure(3.2 * columns, 1.75 * rows + 0.6)
        grid = figure.subplots(rows, columns, squeeze=False, sharex="col", sharey="row")
        places = {
            (condition, quantity): grid[row, column]
            for row, quantity in enumerate(quantities)
            for column, condition in enumerate(conditions)
        }
        for condition, axes in zip(conditions, grid[0], strict=True):
            axes.set_title(wrap(condition, 36))
        for quantity, axes in zip(quantities, grid[:, 0], strict=True):
            axes.set_ylabel(quantity.title)
    for axes in grid[-1]:
        axes.set_xlabel("step")
    return figure, places


def draw_groups(axes: Axes, runs: Sequence[RunRecord], quantity: Quantity) -> dict[str, Any]:
    """The lines of a quantity; returns a handle for the legend for each group of runs."""
    handles = {}
    seen: dict[str, int] = {}
    for name, group in grouped(runs).items():
        method = group[0].method
        line = LINES[seen.get(method, 0) % len(LINES)]
        seen[method] = seen.get(method, 0) + 1
        curves = [found for run in group if (found := curve(run, quantity))[0]]
        if not curves:
            continue
        mark = "o" if len(curves[0][0]) == 1 else ""  # a single value has no line
        look: dict[str, Any] = {"color": method_color(method), "linestyle": line, "marker": mark, "markersize": 4}
        if len(curves) > 1:
            for steps, values in curves:
                axes.plot(steps, values, **look, linewidth=0.7, alpha=0.65)
        (handles[name],) = axes.plot(*mean_curve(curves), **look)
    return handles


# Queue ------------------------------------------------------------------------------------------------------------


def queue_fill(run: RunRecord) -> tuple[list[int], NDArray[np.int64]] | None:
    """Steps and filled slots, (rings, steps), where the run has a queue."""
    logged = [(record["step"], record["queue_fill"]) for record in run.records if "queue_fill" in record]
    if not logged:
        return None
    return [step for step, _ in logged], np.array([fill for _, fill in logged]).T


def queue_panel(run: RunRecord, steps: list[int], fill: NDArray[np.int64]) -> Panel:
    """Fill of the queue, class by class."""
    slots = int(run.settings.to_dict()["method"]["slots"])
    room = f"of {slots:,} for each class" if len(fill) > 1 else "in one ring for all classes"
    return Panel(
        f"queue-{slug(run.name)}",
        f"Queue, {run.name}",
        f"Filled slots of the queue at each log step, {room}; the last count is on the right. {run.describe()}.",
        draw_queue(steps, fill, ring_names(run, len(fill)), max(slots, int(fill.max()))),
    )


def ring_names(run: RunRecord, rings: int) -> list[str]:
    """Names of the classes, as far as the run's folder tells them without its data."""
    if rings == 1:
        return ["all classes"]
    return list(run.summary["class_accuracy"]) if run.summary else [str(number) for number in range(rings)]


@house_style()
def draw_queue(steps: list[int], fill: NDArray[np.int64], names: list[str], highest: int) -> Figure:
    """A row of shades for each class."""
    rings = len(names)
    figure = new_figure(6.4, 0.8 + min(0.2 * rings, 4))
    axes = figure.subplots()
    for ring in range(rings):
        edges = np.array([0, *steps]), np.array([ring - 0.38, ring + 0.38])
        axes.pcolormesh(*edges, fill[ring : ring + 1], cmap=shades(ACCENT), vmin=0, vmax=highest, rasterized=True)
    axes.grid(visible=False)
    axes.invert_yaxis()
    axes.set(xlabel="step")
    if rings <= MANY:
        axes.set_yticks(range(rings), names)
        for ring, count in enumerate(fill[:, -1]):
            axes.annotate(
                f"{count:,}", (1, ring), (5, 0), ("axes fraction", "data"), "offset points", va="center", size=8
            )
    else:
        axes.set(yticks=[], ylabel=f"{rings} classes")
    return figure
