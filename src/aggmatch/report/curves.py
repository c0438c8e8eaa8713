"""What a run's log tells: accuracy, losses, quality of the pseudo labels and fill of the queue over the steps."""

from collections.abc import Iterator, Sequence
from math import isnan, nan
from textwrap import fill as wrap
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from aggmatch.report.figure import ACCENT, FOREGROUND, LINES, MANY, Panel, house_style, legend, new_figure, slug
from aggmatch.report.style import MARKS, Look, looks
from aggmatch.runs.stored import RunRecord, conditions, first_folds, grouped

Curve = tuple[list[int], list[float]]

MARKED = 6
"""Marks along a line of a variant, about."""
WIDE = 10
"""Losses of which the largest is this many times the smallest are drawn on a logarithmic axis."""
ROW = 0.8
"""Height of a row of the queue, of 1 between two rows."""


class Quantity(NamedTuple):
    """A value of the log and how it is drawn."""

    key: str
    title: str
    scale: float = 1.0
    most: float | None = None
    """The largest value that is drawn where the quantity is a share; 0 is the smallest."""


ACCURACY = (
    Quantity("accuracy_average", "Averaged network, %", most=100),
    Quantity("accuracy_online", "Network in training, %", most=100),
)
LOSSES = (
    Quantity("loss", "Loss"),
    Quantity("loss_labeled", "Loss, labelled images"),
    Quantity("loss_unlabeled", "Loss, unlabelled images"),
)
PSEUDO_LABELS = (
    Quantity("pseudo_precision", "Precision, %", 100, most=100),
    Quantity("pseudo_recall", "Recall, %", 100, most=100),
    Quantity("pseudo_coverage", "Coverage, %", 100, most=100),
    Quantity("confidence", "Mean confidence", most=1),
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
            "weight in the loss. Precision: share of right ones among them, a gap where none counts; recall: right "
            "ones over all images; coverage: mean weight. Confidence is each method's own, before any threshold. Means "
            "between log steps.",
        ),
    ):
        present = [quantity for quantity in quantities if any(count(curve(run, quantity)) for run in runs)]
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
    """Steps and values of a quantity where the run has logged it; the precision of no pseudo label is a gap."""
    logged = [record for record in run.records if quantity.key in record or no_precision(record, quantity)]
    values = [nan if no_precision(each, quantity) else float(quantity.scale * each[quantity.key]) for each in logged]
    return [record["step"] for record in logged], values


def no_precision(record: dict[str, Any], quantity: Quantity) -> bool:
    """Whether the quantity is the precision of pseudo labels and none counted, for which older logs have 0."""
    return quantity.key == "pseudo_precision" and record.get("pseudo_coverage") == 0 and "pseudo_recall" in record


def count(drawn: Curve) -> int:
    """Numbers in a curve."""
    return sum(not isnan(value) for value in drawn[1])


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Mean over runs at the steps that all of them have logged."""
    tables = [dict(zip(*each, strict=True)) for each in curves]
    steps = [step for step in curves[0][0] if all(step in table for table in tables)]
    return steps, [float(np.mean([table[step] for table in tables])) for step in steps]


@house_style()
def draw_curves(runs: Sequence[RunRecord], quantities: Sequence[Quantity]) -> Figure:
    """One small plot a quantity and condition (data set, labels, noise); one line a run, one colour a method."""
    parts, by_run = conditions(runs), looks(runs)
    figure, places = lay_out(list(parts), quantities)
    handles: dict[str, Any] = {}
    for (condition, quantity), axes in places.items():
        handles |= draw_groups(axes, parts[condition], quantity, by_run)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    for (_, quantity), axes in places.items():  # when all is drawn, as axes share their scales
        if quantity.most:
            keep_within(axes, quantity.most)
        else:
            scale_losses(axes, [value for run in runs for value in curve(run, quantity)[1]])
    legend(figure, {name: handles[name] for part in parts.values() for name in grouped(part) if name in handles})
    return figure


def keep_within(axes: Axes, most: float) -> None:
    """End the vertical axis at 0 and at the most that a share can be, and let it be a hundredth of that at least."""
    low, high = np.clip(axes.get_ylim(), 0, most)
    high = min(max(high, low + most / 100), most)
    axes.set_ylim(min(low, high - most / 100), high)


def scale_losses(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic axis for losses that spread widely; otherwise one that does not go below 0 if no loss does."""
    least, largest = min(values), max(values)
    if least > 0 and largest >= WIDE * least:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axes.yaxis.set_major_formatter("{x:g}")  # the usual one needs mathematical text, which panels do without
        axes.yaxis.set_minor_formatter("")
    elif least >= 0:
        axes.set_ylim(bottom=max(axes.get_ylim()[0], 0))


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


def draw_groups(
    axes: Axes, runs: Sequence[RunRecord], quantity: Quantity, by_run: dict[RunRecord, Look]
) -> dict[str, Any]:
    """The lines of a quantity; returns a handle for the legend for each group of runs."""
    handles = {}
    for name, group in grouped(runs).items():
        curves = [found for run in group if count(found := curve(run, quantity))]
        if not curves:
            continue
        color, line, mark = by_run[group[0]]
        style: dict[str, Any] = {"color": color, "linestyle": line, "clip_on": False, "zorder": 3}
        if len(curves) > 1:
            for steps, values in curves:
                axes.plot(steps, values, **style, linewidth=0.7, alpha=0.65)
        mean = mean_curve(curves)
        if count(mean) == 1 or line != LINES[0]:  # a single value has no line, and variants are told apart by marks
            inside = color if mark == MARKS[0] else "none"  # so that marks on one place are seen both
            style |= {"marker": mark, "markersize": 5, "markerfacecolor": inside}
            style |= {"markevery": max(len(mean[0]) // MARKED, 1)}
        (handles[name],) = axes.plot(*mean, **style)
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
    slots = ring_slots(run, len(fill))
    room = f"of {slots:,} for each class" if len(fill) > 1 else "in one ring for all classes"
    most = slots or max(int(fill.max()), 1)
    return Panel(
        f"queue-{slug(run.name)}",
        f"Queue, {run.name}",
        f"Filled slots of the queue, {room}, as the height of an area in its row. The queue starts empty; log steps "
        f"from {steps[0]:,} on are spaced logarithmically. The last count is on the right"
        f"{f'; {full(steps, fill, slots)}' if slots else ''}. {run.describe()}.",
        draw_queue(steps, fill / most, [f"{count:,}" for count in fill[:, -1]], ring_names(run, len(fill))),
    )


def ring_slots(run: RunRecord, rings: int) -> int | None:
    """Slots of a ring; None where one ring has those of all classes and the run's folder does not tell how many."""
    slots = int(run.settings.to_dict()["method"]["slots"])
    if rings > 1:
        return slots
    return slots * len(run.summary["class_accuracy"]) if run.summary else None


def full(steps: list[int], fill: NDArray[np.int64], slots: int) -> str:
    """By which log step every ring was full, or how many are not."""
    rest = int((fill[:, -1] < slots).sum())
    if rest:
        return f"{rest} of {len(fill)} not full"
    since = max(steps[int((row >= slots).argmax())] for row in fill)
    return f"all full at step {since:,}"


def ring_names(run: RunRecord, rings: int) -> list[str]:
    """Names of the classes, as far as the run's folder tells them without its data."""
    if rings == 1:
        return ["all classes"]
    return list(run.summary["class_accuracy"]) if run.summary else [str(number) for number in range(rings)]


@house_style()
def draw_queue(steps: list[int], share: NDArray[np.float64], counts: list[str], names: list[str]) -> Figure:
    """A row for each class, in which an area as high as its share rises."""
    rings = len(names)
    figure = new_figure(6.4, 0.8 + min(0.24 * rings, 4))
    axes = figure.subplots()
    for ring, row in enumerate(share):
        bottom = ring + ROW / 2
        axes.axhspan(bottom, bottom - ROW, color=FOREGROUND, alpha=0.06, linewidth=0)
        top = bottom - ROW * np.array([0, *row])
        axes.fill_between([0, *steps], bottom, top, color=ACCENT, alpha=0.55, linewidth=0)
        axes.plot([0, *steps], top, color=ACCENT, linewidth=1 if rings <= MANY else 0.5)
    axes.grid(visible=False)
    axes.set_xscale("symlog", linthresh=steps[0])
    axes.set_xticks(decades(steps[0], steps[-1]))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel="step", xlim=(0, steps[-1]), ylim=(rings - 0.5, -0.5))
    if rings <= MANY:
        axes.set_yticks(range(rings), names)
        for ring, count in enumerate(counts):
            axes.annotate(count, (1, ring), (5, 0), ("axes fraction", "data"), "offset points", va="center", size=8)
    else:
        axes.set(yticks=[], ylabel=f"{rings} classes")
    return figure


def decades(first: int, last: int) -> list[int]:
    """0, the first and the last step, and the powers of ten between that stand off from both."""
    powers = [10**power for power in range(12)]
    return sorted({0, first, *(power for power in powers if 2 * first < power < last / 2), last})
