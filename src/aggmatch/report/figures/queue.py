"""How the queue of each class fills over the steps."""

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import NullLocator
from numpy.typing import NDArray

from aggmatch.methods import load_method
from aggmatch.report.figure import MANY, PHONE, Panel, Plot, house_style, new_figure, short, slug
from aggmatch.report.figures import Figure
from aggmatch.report.style import ACCENT, FOREGROUND
from aggmatch.runs.stats import first_of_groups
from aggmatch.runs.stored import StoredRun

Fill = NDArray[np.int64]
"""Filled slots, (rings, steps)."""
ROW = 0.8
"""Height of a ring's row; rows are 1 apart."""


def draw(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """One panel for the first run of each group that has logged the fill of a queue."""
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
    names = list(run.class_accuracy) or [str(number) for number in range(rings)]
    return Panel(
        f"queue-{slug(run.name)}",
        f"Queue, {run.name}",
        f"Filled slots of the queue,{room}, as the height of an area in its row. The queue starts empty; log steps "
        f"from {steps[0]:,} on are spaced logarithmically. The last count is on the right"
        f"{f'; {describe_full(steps, fill, slots)}' if slots else ''}. {run.describe()}.",
        [Plot("", draw_queue(steps, fill, most, names if rings > 1 else ["all"]))],
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
        axes.set_yticks(range(rings), [short(name) for name in names])
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


FIGURE = Figure(draw, chapter="training", needs="its log, of a method with a queue", order=40, quick=True)
