"""Figures from the log: accuracy, losses and pseudo labels over the steps, and how the queue fills."""

from collections.abc import Iterator, Mapping, Sequence
from math import isnan, nan
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from aggmatch.methods import load_method
from aggmatch.report.figure import (
    MANY,
    PHONE,
    Look,
    Panel,
    Plot,
    house_style,
    legend,
    looks,
    new_figure,
    short_names,
    slug,
)
from aggmatch.report.figures import Figure
from aggmatch.report.style import ACCENT, FOREGROUND, LINES, MARKS
from aggmatch.runs.stats import conditions, describe_setting, first_of_groups, grouped
from aggmatch.runs.stored import StoredRun

Curve = tuple[list[int], list[float]]

MARKED = 6
"""Approximate number of marks along a line."""
WIDE = 10
"""Losses whose largest value is this many times the smallest have a logarithmic axis."""


class Quantity(NamedTuple):
    """A value of the log and how it is drawn."""

    key: str
    """Its name in the log."""
    name: str
    """Its part of a file name."""
    title: str
    scale: float = 1.0
    """Factor between the logged and the drawn value."""
    most: float | None = None
    """The largest possible value if the quantity is a share, whose smallest is 0."""
    meaning: str = ""
    """A sentence for the caption, if its name does not say it."""


def curve_panels(
    runs: Sequence[StoredRun],
    name: str,
    title: str,
    words: str,
    quantities: Sequence[Quantity],
    *,
    one_scale: bool = False,
) -> Iterator[Panel]:
    """Yield one panel with the curves of some quantities, or none if no run has logged any of them.

    one_scale: whether all plots have the same vertical axis; otherwise those of one quantity have.
    """
    present = [quantity for quantity in quantities if any(numbers(curve(run, quantity)) for run in runs)]
    if present:
        caption = " ".join([words, *filter(None, [quantity.meaning for quantity in present]), describe_runs(runs)])
        yield Panel(name, title, caption, draw_curves(runs, present, one_scale=one_scale))


def describe_runs(runs: Sequence[StoredRun]) -> str:
    """The runs behind the curves with their recipes, and what thin and thick lines mean if a group has several runs."""
    listed = "; ".join(
        f"{condition}: " + ", ".join(f"{name} ({facts_of(name, group)})" for name, group in grouped(part).items())
        for condition, part in conditions(runs).items()
    )
    several = any(len(group) > 1 for part in conditions(runs).values() for group in grouped(part).values())
    return listed + "." + (" Thin lines are single runs, thick lines their means." if several else "")


def facts_of(name: str, group: Sequence[StoredRun]) -> str:
    """The recipe of a group of runs, unless its name has it, and its folds."""
    recipe = describe_setting("recipe", group[0].settings.recipe)
    folds = f"fold{'s' if len(group) > 1 else ''} {', '.join(str(run.fold) for run in group)}"
    return folds if recipe in name.split(", ") else f"{recipe}, {folds}"


def curve(run: StoredRun, quantity: Quantity) -> Curve:
    """Steps and values of a quantity that the run has logged; the precision of no pseudo labels is a gap."""
    logged = [record for record in run.records if quantity.key in record or no_precision(record, quantity)]
    values = [nan if no_precision(each, quantity) else float(quantity.scale * each[quantity.key]) for each in logged]
    return [record["step"] for record in logged], values


def no_precision(record: Mapping[str, Any], quantity: Quantity) -> bool:
    """Whether the quantity is the precision and no pseudo label counted; older logs have 0 there."""
    return quantity.key == "pseudo_precision" and record.get("pseudo_coverage") == 0 and "pseudo_recall" in record


def numbers(drawn: Curve) -> int:
    """How many values of a curve are not gaps."""
    return sum(not isnan(value) for value in drawn[1])


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Mean over runs at the steps that all of them have logged."""
    tables = [dict(zip(*each, strict=True)) for each in curves]
    steps = [step for step in curves[0][0] if all(step in table for table in tables)]
    return steps, [float(np.mean([table[step] for table in tables])) for step in steps]


@house_style()
def draw_curves(runs: Sequence[StoredRun], quantities: Sequence[Quantity], *, one_scale: bool) -> list[Plot]:
    """One plot per quantity and condition that has values of it."""
    parts, by_run = conditions(runs), looks(runs)
    plots: list[Plot] = []
    drawn: dict[Quantity, list[Axes]] = {quantity: [] for quantity in quantities}
    for quantity in quantities:
        for condition, part in parts.items():
            figure = new_figure(PHONE, 2.3)
            axes = figure.subplots()
            handles = draw_groups(axes, part, quantity, by_run)
            if not handles:
                continue
            axes.set(title=quantity.title, xlabel="step")
            axes.set_xlim(left=0)
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            if len(set(by_run.values())) > 1:
                legend(figure, handles)
            several = len(parts) > 1
            name = f"{quantity.name}-{slug(condition)}" if several else quantity.name
            plots.append(Plot(name, figure, condition if several else ""))
            drawn[quantity].append(axes)
    for together in [quantities] if one_scale else [[quantity] for quantity in quantities]:
        values = [value for quantity in together for run in runs for value in curve(run, quantity)[1]]
        set_scale([axes for quantity in together for axes in drawn[quantity]], values, together[0].most)
    return plots


def draw_groups(
    axes: Axes, runs: Sequence[StoredRun], quantity: Quantity, by_run: Mapping[StoredRun, Look]
) -> dict[str, Any]:
    """Draw the lines of a quantity; return a handle for the legend by name of each group that has any."""
    handles = {}
    for name, group in grouped(runs).items():
        curves = [found for run in group if numbers(found := curve(run, quantity))]
        if not curves:
            continue
        color, line, mark = by_run[group[0]]
        style: dict[str, Any] = {"color": color, "linestyle": line, "clip_on": False, "zorder": 3}
        if len(curves) > 1:
            for steps, values in curves:
                axes.plot(steps, values, **style, linewidth=0.7, alpha=0.65)
        mean = mean_curve(curves)
        if numbers(mean) == 1 or line != LINES[0]:  # a single value has no line, and variants differ in their marks
            inside = color if mark == MARKS[0] else "none"  # so that both marks at one place are visible
            style |= {"marker": mark, "markersize": 5, "markerfacecolor": inside}
            style |= {"markevery": max(len(mean[0]) // MARKED, 1)}
        (handles[name],) = axes.plot(*mean, **style)
    return handles


def set_scale(plots: Sequence[Axes], values: Sequence[float], most: float | None) -> None:
    """Give plots the same vertical axis.

    most: the largest possible value of a share. The axis of shares stays within 0 and that and spans at least a
    hundredth of it. The axis of others is logarithmic if they spread widely, and has no negative part without need.
    """
    least, largest = np.nanmin(values), np.nanmax(values)
    logarithmic = most is None and least > 0 and largest >= WIDE * least
    if logarithmic:
        for axes in plots:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
            axes.yaxis.set_major_formatter("{x:g}")  # the usual one needs mathematical text, which is switched off
            axes.yaxis.set_minor_formatter("")
    limits = np.array([axes.get_ylim() for axes in plots])
    low, high = float(limits[:, 0].min()), float(limits[:, 1].max())
    if most:
        low, high = max(low, 0), min(high, most)
        high = min(max(high, low + most / 100), most)
        low = min(low, high - most / 100)
    elif least >= 0 and not logarithmic:
        low = max(low, 0)
    for axes in plots:
        axes.set_ylim(low, high)


# Accuracy -------------------------------------------------------------------------------------------------------------


ACCURACY = (
    Quantity("accuracy_average", "average", "Averaged network, %", most=100),
    Quantity("accuracy_online", "online", "Network in training, %", most=100),
)


def accuracy(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """Test accuracy of both networks over the steps.

    One panel of curves with a common scale.
    """
    words = "Accuracy on all test images."
    yield from curve_panels(runs, "accuracy", "Test accuracy", words, ACCURACY, one_scale=True)


# Losses ---------------------------------------------------------------------------------------------------------------


LOSSES = (
    Quantity("loss", "total", "Loss"),
    Quantity("loss_labeled", "labeled", "Loss, labelled images"),
    Quantity("loss_unlabeled", "unlabeled", "Loss, unlabelled images"),
)


def losses(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """Training losses over the steps.

    One panel of curves.
    """
    words = "Training losses, means between two log steps."
    yield from curve_panels(runs, "losses", "Losses", words, LOSSES)


# Pseudo labels --------------------------------------------------------------------------------------------------------


PSEUDO_LABELS = (
    Quantity(
        "pseudo_precision",
        "precision",
        "Precision, %",
        100,
        most=100,
        meaning="Precision: share of right ones among them, by the truth, which training does not see; a gap if none "
        "counts.",
    ),
    Quantity("pseudo_recall", "recall", "Recall, %", 100, most=100, meaning="Recall: right ones over all images."),
    Quantity("pseudo_coverage", "coverage", "Coverage, %", 100, most=100, meaning="Coverage: mean weight."),
    Quantity(
        "confidence",
        "confidence",
        "Mean confidence",
        most=1,
        meaning="Confidence: each method's own, before any threshold.",
    ),
)
PSEUDO_WORDS = (
    "Pseudo labels of unlabelled images, each counted with its weight in the loss; means between two log steps."
)


def pseudo_labels(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """Precision, recall, coverage and confidence of the pseudo labels over the steps.

    One panel of curves.
    """
    yield from curve_panels(runs, "pseudo-labels", "Pseudo labels in training", PSEUDO_WORDS, PSEUDO_LABELS)


# Queue ----------------------------------------------------------------------------------------------------------------


Fill = NDArray[np.int64]
"""Filled slots, (rings, steps)."""
ROW = 0.8
"""Height of a ring's row; rows are 1 apart."""


def queue(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """How the queue of each class fills over the steps.

    One panel for the first run of each group that has logged the fill of a queue.
    """
    for run in first_of_groups(runs):
        if logged := queue_fill(run):
            yield queue_panel(run, *logged)


def queue_fill(run: StoredRun) -> tuple[list[int], Fill] | None:
    """Log steps and filled slots of a run's queue; None if it has none."""
    logged = [(record["step"], record["queue_fill"]) for record in run.records if "queue_fill" in record]
    return ([step for step, _ in logged], np.array([fill for _, fill in logged]).T) if logged else None


def queue_panel(run: StoredRun, steps: list[int], fill: Fill) -> Panel:
    """Fill of a run's queue, ring by ring."""
    rings = len(fill)
    slots = ring_slots(run, rings)
    most = slots or max(int(fill.max()), 1)
    each_has = f" of {slots:,}" if slots else ""
    room = f"{each_has} for each class" if rings > 1 else " in one ring for all classes"
    names = run.class_names(rings) if rings > 1 else ["all"]
    return Panel(
        f"queue-{slug(run.name)}",
        f"Queue, {run.name}",
        f"Filled slots of the queue,{room}, as the height of an area in its row. The queue starts empty; log steps "
        f"from {steps[0]:,} on are spaced logarithmically. The last count is on the right"
        f"{f'; {describe_full(steps, fill, slots)}' if slots else ''}. {run.describe()}.",
        [Plot("", draw_queue(steps, fill, most, names))],
    )


def ring_slots(run: StoredRun, rings: int) -> int | None:
    """Slots of a ring; None if unknown, as for one ring of an unfinished run, whose number of classes is unknown."""
    classes = rings if rings > 1 else len(run.class_accuracy)
    slots = load_method(run.settings.method_name).memory_slots(run.settings.method, classes)
    return max(slots, default=0) or None


def describe_full(steps: list[int], fill: Fill, slots: int) -> str:
    """The log step at which every ring is full, or how many rings are not."""
    rest = int((fill[:, -1] < slots).sum())
    if rest:
        return f"{rest} of {len(fill)} not full"
    since = max(steps[int((row >= slots).argmax())] for row in fill)
    return f"all full at step {since:,}"


@house_style()
def draw_queue(steps: list[int], fill: Fill, most: int, names: Sequence[str]) -> Drawing:
    """A row for each ring, in which an area rises as high as its share of `most` slots."""
    steps, rings = [0, *steps], len(names)
    figure = new_figure(PHONE, 0.8 + min(0.24 * rings, 4))
    axes = figure.subplots()
    for ring, row in enumerate(fill / most):
        bottom = ring + ROW / 2
        axes.axhspan(bottom, bottom - ROW, color=FOREGROUND, alpha=0.06, linewidth=0)
        top = bottom - ROW * np.array([0, *row])
        axes.fill_between(steps, bottom, top, color=ACCENT, alpha=0.55, linewidth=0)
        axes.plot(steps, top, color=ACCENT, linewidth=1 if rings <= MANY else 0.5)
    axes.grid(visible=False)
    axes.set_xscale("symlog", linthresh=steps[1])
    axes.set_xticks(decades(steps[1], steps[-1]))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel="step", xlim=(0, steps[-1]), ylim=(rings - 0.5, -0.5))
    if rings <= MANY:
        axes.set_yticks(range(rings), short_names(names))
        for ring, count in enumerate(fill[:, -1]):
            place = ((1, ring), (5, 0), ("axes fraction", "data"), "offset points")
            axes.annotate(f"{count:,}", *place, va="center", size=8)
    else:
        axes.set(yticks=[], ylabel=f"{rings} classes")
    return figure


def decades(first: int, last: int) -> list[int]:
    """0, the first and the last step, and the powers of ten between them that are not close to either."""
    powers = [10**power for power in range(12)]
    return sorted({0, first, *(power for power in powers if 2 * first < power < last / 4), last})


FIGURES = {
    "accuracy": Figure(accuracy, chapter="training", needs="evaluations in its log", order=10, quick=True),
    "losses": Figure(losses, chapter="training", needs="its log", order=20, quick=True),
    "pseudo_labels": Figure(pseudo_labels, chapter="training", needs="a log of pseudo labels", order=30, quick=True),
    "queue": Figure(queue, chapter="training", needs="a log of a queue", order=40, quick=True),
}
