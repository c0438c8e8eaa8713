"""Curves of logged values over the steps: one plot per quantity and condition, one line per group of runs."""

from collections.abc import Iterator, Mapping, Sequence
from math import isnan, nan
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator

from aggmatch.report.figure import PHONE, Panel, Plot, house_style, legend, new_figure, slug
from aggmatch.report.style import LINES, MARKS, Look, looks
from aggmatch.runs.stats import conditions, grouped
from aggmatch.runs.stored import StoredRun

Curve = tuple[list[int], list[float]]

MARKED = 6
"""Marks along a line, about."""
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
        yield Panel(name, title, f"{words} {describe_runs(runs)}", draw_curves(runs, present, one_scale=one_scale))


def describe_runs(runs: Sequence[StoredRun]) -> str:
    """The runs behind the curves, and what thin and thick lines mean if a group has several runs."""
    listed = "; ".join(
        f"{condition}: "
        + ", ".join(
            f"{name} (fold{'s' if len(group) > 1 else ''} {', '.join(str(run.fold) for run in group)})"
            for name, group in grouped(part).items()
        )
        for condition, part in conditions(runs).items()
    )
    several = any(len(group) > 1 for part in conditions(runs).values() for group in grouped(part).values())
    return listed + "." + (" Thin lines are single runs, thick lines their means." if several else "")


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
