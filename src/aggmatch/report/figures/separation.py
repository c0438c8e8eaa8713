"""Figures of the weight of pseudo labels: how well it separates right from wrong ones, and which classes it favours."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

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
    short,
    slug,
)
from aggmatch.report.figures import Figure
from aggmatch.report.figures.training import Quantity, describe_runs, draw_curves
from aggmatch.report.style import ACCENT, FOREGROUND, MARKS
from aggmatch.runs.stats import conditions, first_of_groups, grouped
from aggmatch.runs.stored import StoredRun

AUC = Quantity("pseudo_auc", "auc", "AUC of the weight", most=1)
CHANCE = 0.5
"""AUC of a weight that says nothing."""
LAST = 0.1
"""Share of the logged lines, from the end, whose mean is drawn as the end of training."""

Values = NDArray[np.float64]


def at_the_end(run: StoredRun, key: str) -> Values | None:
    """Mean of a logged list over the last lines that have it; None if no line has."""
    logged = [record[key] for record in run.records if key in record]
    count = max(round(LAST * len(logged)), 1)
    return np.mean(logged[-count:], axis=0) if logged else None


# Weight and rightness -------------------------------------------------------------------------------------------------


SEPARATION_WORDS = (
    "AUC: how often, of a right and a wrong pseudo label of one step, the right one has the larger weight; equal "
    "weights count half, so 0.5 (dotted) says that the weight does not tell them apart. Tenths: share of right pseudo "
    "labels in ten equal groups of a step, from the smallest to the largest weight, in the last tenth of the log; "
    "a weight that is 0 or 1, or nearly constant, gives steps or a flat line. The truth is not seen in training."
)


def separation(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """How well the weight separates right from wrong pseudo labels: AUC over the steps, precision by weight.

    One panel.
    """
    known = [run for run in runs if at_the_end(run, "pseudo_precision_by_weight") is not None]
    if known:
        plots = [*auc_plots(known), *tenth_plots(known)]
        words = f"{SEPARATION_WORDS} {describe_runs(known)}"
        yield Panel("separation", "Weight and rightness of pseudo labels", words, plots)


def auc_plots(runs: Sequence[StoredRun]) -> list[Plot]:
    """The AUC over the steps; none if pseudo labels were always all right or all wrong."""
    if not any(AUC.key in record for run in runs for record in run.records):
        return []
    plots = draw_curves(runs, [AUC], one_scale=True)
    for plot in plots:
        (axes,) = plot.figure.axes
        low, high = axes.get_ylim()
        axes.axhline(CHANCE, color=FOREGROUND, linewidth=0.8, alpha=0.6, linestyle=(0, (1, 2)))
        axes.set_ylim(min(low, CHANCE - 0.02), max(high, CHANCE + 0.1))
    return plots


@house_style()
def tenth_plots(runs: Sequence[StoredRun]) -> list[Plot]:
    """Precision by tenth of the weight at the end, a plot for each condition and a line for each group."""
    parts, by_run = conditions(runs), looks(runs)
    if len(parts) == 1:
        return [Plot("tenths", draw_tenths(runs, by_run))]
    return [Plot(f"tenths-{slug(name)}", draw_tenths(part, by_run), name) for name, part in parts.items()]


def draw_tenths(runs: Sequence[StoredRun], by_run: Mapping[StoredRun, Look]) -> Drawing:
    """Mean over the runs of each group."""
    figure = new_figure(PHONE, 2.3)
    axes = figure.subplots()
    handles: dict[str, Any] = {}
    for name, group in grouped(runs).items():
        found = [at_the_end(run, "pseudo_precision_by_weight") for run in group]
        precision = 100 * np.mean([values for values in found if values is not None], axis=0)
        color, line, mark = by_run[group[0]]
        look = {"color": color, "linestyle": line, "marker": mark, "markersize": 4, "clip_on": False, "zorder": 3}
        look |= {"markerfacecolor": color if mark == MARKS[0] else "none"}
        (handles[name],) = axes.plot(np.arange(1, len(precision) + 1), precision, **look)
    axes.set(title="Right, % of each tenth by weight", xlabel="tenth, the largest weights last", ylim=(0, 100))
    axes.set_xticks(range(1, 11))
    if len(set(by_run.values())) > 1:
        legend(figure, handles)
    return figure


# Classes --------------------------------------------------------------------------------------------------------------


def class_shares(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """Share of each class among the pseudo labels, next to its share among the labels.

    One panel for the first run of each group that has logged them.
    """
    for run in first_of_groups(runs):
        share = at_the_end(run, "pseudo_class_share")
        if share is not None:
            yield class_shares_panel(run, share)


def class_shares_panel(run: StoredRun, share: Values) -> Panel:
    """Shares of one run at the end."""
    given = np.bincount(run.drawn["labels"], minlength=len(share)) / len(run.drawn["labels"])
    names = run.class_names(len(share))
    apart = 50 * float(np.abs(share - given).sum())
    return Panel(
        f"class-shares-{slug(run.name)}",
        f"Classes of the pseudo labels, {run.name}",
        f"Share of each class among the pseudo labels, each counted with its weight, in the last tenth of the log, and "
        f"among the labels. {apart:.1f} % of the weight would have to move to other classes to match the labels. "
        f"{run.describe()}.",
        [Plot("", draw_shares(share, given, names))],
    )


@house_style()
def draw_shares(share: Values, given: Values, names: Sequence[str]) -> Drawing:
    """A bar for each class, and a mark at its share among the labels."""
    count = len(share)
    figure = new_figure(PHONE, 0.9 + min(0.2 * count, 4))
    axes = figure.subplots()
    rows = np.arange(count)
    axes.barh(rows, 100 * share, color=ACCENT, alpha=0.7, height=0.75)
    axes.vlines(100 * given, rows - 0.45, rows + 0.45, color=FOREGROUND, linewidth=1.6 if count <= MANY else 0.8)
    axes.set(title="Share, %", ylim=(count - 0.5, -0.5))
    axes.set_xlim(left=0)
    axes.grid(visible=False, axis="y")
    if count <= MANY:
        axes.set_yticks(rows, [short(name) for name in names])
    else:
        axes.set(yticks=[], ylabel=f"{count} classes")
    bar = Patch(color=ACCENT, alpha=0.7)
    legend(figure, {"pseudo labels": bar, "labels": Line2D([], [], color=FOREGROUND, linewidth=1.6)})
    return figure


FIGURES = {
    "separation": Figure(
        separation, chapter="training", needs="a log of pseudo labels of known truth", order=32, quick=True
    ),
    "class_shares": Figure(class_shares, chapter="training", needs="a log of pseudo labels", order=34, quick=True),
}
