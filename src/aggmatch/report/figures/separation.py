"""Figures of the weight of pseudo labels: how well it separates right from wrong ones, and which classes it favours."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

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

BY_WEIGHT = "pseudo_precision_by_weight"
AUC = Quantity("pseudo_auc", "auc", "AUC of the weight", most=1)
CHANCE = 0.5
"""AUC of a weight that says nothing."""
SHARE = 0.1
"""Share of the logged lines, from either end, whose mean is drawn as the beginning or the end of training."""
BEGINNING, END = "beginning", "end"

Values = NDArray[np.float64]


class Part(NamedTuple):
    """Mean of a logged list over a part of the log."""

    values: Values
    first: int
    """First step of the part."""
    last: int
    """Last step of the part."""

    @property
    def steps(self) -> str:
        """`steps 100 to 300`, or `step 100`."""
        return f"steps {self.first:,} to {self.last:,}" if self.first < self.last else f"step {self.last:,}"


def parts_of(run: StoredRun, key: str) -> dict[str, Part]:
    """Means of a logged list at the beginning and at the end of training; empty if no line has it.

    The beginning is the first lines in which pseudo labels have some weight. It is left out if it would overlap with
    the end.
    """
    logged = [record for record in run.records if key in record]
    if not logged:
        return {}
    count = max(round(SHARE * len(logged)), 1)
    counting = [line for line in logged if line.get("pseudo_coverage", 1) > 0]
    lines = {BEGINNING: counting[:count], END: logged[-count:]}
    parts = {
        name: Part(np.mean([line[key] for line in found], axis=0), found[0]["step"], found[-1]["step"])
        for name, found in lines.items()
        if found
    }
    if BEGINNING in parts and parts[BEGINNING].last >= parts[END].first:
        del parts[BEGINNING]
    return parts


# Weight and rightness -------------------------------------------------------------------------------------------------


SEPARATION_WORDS = (
    "AUC: how often, of a right and a wrong pseudo label of one step, the right one has the larger weight; equal "
    "weights count half, so 0.5 (dotted) says that the weight does not tell them apart. Tenths: share of right pseudo "
    "labels in ten equal groups of a step, from the smallest to the largest weight, at the beginning (a tenth of the "
    "log, from the first line in which pseudo labels count) and in the last tenth of the log; a weight that is 0 or 1, "
    "or nearly constant, gives steps or a flat line. The truth is not seen in training."
)


def separation(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """How well the weight separates right from wrong pseudo labels: AUC over the steps, precision by weight.

    One panel.
    """
    known = [run for run in runs if parts_of(run, BY_WEIGHT)]
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
    """Precision by tenth of the weight, a plot for each condition and part of training and a line for each group."""
    by_condition, by_run = conditions(runs), looks(runs)
    several = len(by_condition) > 1
    plots = []
    for condition, members in by_condition.items():
        for when in (BEGINNING, END):
            if known := [run for run in members if when in parts_of(run, BY_WEIGHT)]:
                name = f"tenths-{when}-{slug(condition)}" if several else f"tenths-{when}"
                plots.append(Plot(name, draw_tenths(known, when, by_run), condition if several else ""))
    return plots


def draw_tenths(runs: Sequence[StoredRun], when: str, by_run: Mapping[StoredRun, Look]) -> Drawing:
    """Mean over the runs of each group in a part of training that all of them have."""
    figure = new_figure(PHONE, 2.3)
    axes = figure.subplots()
    handles: dict[str, Any] = {}
    for name, group in grouped(runs).items():
        precision = 100 * np.mean([parts_of(run, BY_WEIGHT)[when].values for run in group], axis=0)
        color, line, mark = by_run[group[0]]
        look = {"color": color, "linestyle": line, "marker": mark, "markersize": 4, "clip_on": False, "zorder": 3}
        look |= {"markerfacecolor": color if mark == MARKS[0] else "none"}
        (handles[name],) = axes.plot(np.arange(1, len(precision) + 1), precision, **look)
    axes.set(title=f"Right, % of each tenth, {when}", xlabel="tenth, the largest weights last", ylim=(0, 100))
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
        if parts := parts_of(run, "pseudo_class_share"):
            yield class_shares_panel(run, parts)


def class_shares_panel(run: StoredRun, parts: Mapping[str, Part]) -> Panel:
    """Shares of one run at the beginning and at the end."""
    count = len(parts[END].values)
    given = np.bincount(run.drawn["labels"], minlength=count) / len(run.drawn["labels"])
    apart = [
        f"at the {when} ({part.steps}) {50 * float(np.abs(part.values - given).sum()):.1f} %"
        for when, part in parts.items()
    ]
    early = "when they begin to count (circles) and " if BEGINNING in parts else ""
    return Panel(
        f"class-shares-{slug(run.name)}",
        f"Classes of the pseudo labels, {run.name}",
        f"Share of each class among the pseudo labels, each counted with its weight, {early}in the last tenth of the "
        f"log (bars), and among the labels (lines). To match the labels, {' and '.join(apart)} of the weight would "
        f"have to move to other classes. {run.describe()}.",
        [Plot("", draw_shares(parts, given, run.class_names(count)))],
    )


@house_style()
def draw_shares(parts: Mapping[str, Part], given: Values, names: Sequence[str]) -> Drawing:
    """For each class a bar for its share at the end, a circle for the beginning and a line for the labels."""
    share = parts[END].values
    count = len(share)
    figure = new_figure(PHONE, 0.9 + min(0.2 * count, 4))
    axes = figure.subplots()
    rows = np.arange(count)
    axes.barh(rows, 100 * share, color=ACCENT, alpha=0.7, height=0.75)
    axes.vlines(100 * given, rows - 0.45, rows + 0.45, color=FOREGROUND, linewidth=1.6 if count <= MANY else 0.8)
    handles: dict[str, Any] = {f"pseudo labels, {END}": Patch(color=ACCENT, alpha=0.7)}
    if BEGINNING in parts:
        look: dict[str, Any] = {
            "marker": "o",
            "linestyle": "none",
            "markersize": 5 if count <= MANY else 2,
            "markerfacecolor": "none",
        }
        look |= {"color": FOREGROUND, "clip_on": False, "zorder": 3}
        (handles[f"pseudo labels, {BEGINNING}"],) = axes.plot(100 * parts[BEGINNING].values, rows, **look)
    handles["labels"] = Line2D([], [], color=FOREGROUND, linewidth=1.6)
    axes.set(title="Share, %", ylim=(count - 0.5, -0.5))
    axes.set_xlim(left=0)
    axes.grid(visible=False, axis="y")
    if count <= MANY:
        axes.set_yticks(rows, [short(name) for name in names])
    else:
        axes.set(yticks=[], ylabel=f"{count} classes")
    legend(figure, handles)
    return figure


FIGURES = {
    "separation": Figure(
        separation, chapter="training", needs="a log of pseudo labels of known truth", order=32, quick=True
    ),
    "class_shares": Figure(class_shares, chapter="training", needs="a log of pseudo labels", order=34, quick=True),
}
