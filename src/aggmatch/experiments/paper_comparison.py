"""Our numbers next to the paper's, with the provenance of each number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path

from aggmatch.config import flatten
from aggmatch.experiments.paper import Cell, PaperTable
from aggmatch.experiments.reproduce import Plan, PlannedCell
from aggmatch.experiments.results_table import Group, Reader, group_runs, read_class
from aggmatch.runs.stats import Length, Median, departures, describe_counts, describe_departures, group_by, likeness
from aggmatch.runs.stored import StoredRun
from aggmatch.storage.files import write_texts
from aggmatch.tables import Table, mean_and_deviation, plural, show_mean

MARKS = "†‡§¶"
NAMED = 3
"""Runs that are named if several are left out for one reason; the others are counted."""


@dataclass(frozen=True)
class Ours:
    """Our number in a cell: runs on several folds that went equally far."""

    group: Group
    values: Sequence[float]
    """Accuracy of each fold in percent."""
    medians: Sequence[Median]
    """Of each fold; empty for the accuracy of a class."""
    departures: str
    """Settings that differ from the table's, in words."""

    @property
    def protocol(self) -> str:
        """How many runs of which length, and their settings that differ from the table's."""
        folds = describe_folds(len(self.values), self.group.length)
        return f"{folds}; {self.departures}" if self.departures else folds


@dataclass(frozen=True)
class Filled:
    """A table of the paper with our number in each cell that has one."""

    table: PaperTable
    ours: Mapping[tuple[str, str], Ours]
    """By row and column."""

    @property
    def protocol(self) -> str:
        """How many runs of which length the table asks for."""
        return describe_folds(self.table.folds, Length(True, self.table.steps, self.table.steps))

    @property
    def runs(self) -> dict[str, StoredRun]:
        """The runs in it, by key."""
        return {run.key: run for ours in self.ours.values() for run in ours.group.runs.values()}

    def fitting(self, width: int) -> Table:
        """The table for a terminal of this width: laid out as in the paper if it fits, or else one line per cell."""
        grid = self.grid()
        return grid if grid.width <= width else self.listing()

    def grid(self) -> Table:
        """For a reader: laid out as in the paper, our numbers above the paper's."""
        cells = {(cell.row, cell.column): cell for cell in self.table.cells}
        rows = []
        for row in self.table.rows:
            shown = [self.show(cells.get((row, column))) for column in self.table.columns]
            for line, name in enumerate(("ours", "median", "paper")):
                texts = [cell_texts[line] for cell_texts in shown]
                if name != "median" or any(texts):
                    rows.append(["" if line else row, name, *texts])
        return Table([self.table.corner, "", *self.table.columns], rows, self.table.heading, self.notes())

    def listing(self) -> Table:
        """For a narrow terminal: one line per cell."""
        columns = [self.table.corner, self.table.across, "ours", "median", "paper"]
        rows = [[cell.row, cell.column, *self.show(cell)] for cell in self.table.cells]
        return Table(columns, rows, self.table.heading, self.notes())

    def marks(self) -> dict[str, str]:
        """Each protocol that differs from the table's → its mark."""
        differing = dict.fromkeys(ours.protocol for ours in self.ours.values() if ours.protocol != self.protocol)
        return {protocol: MARKS[n % len(MARKS)] * (1 + n // len(MARKS)) for n, protocol in enumerate(differing)}

    def show(self, cell: Cell | None) -> tuple[str | None, str | None, str | None]:
        """Our number in a cell with its mark, its median, and the paper's number, all with as many digits."""
        if cell is None:
            return None, None, None
        paper = cell.paper.text.replace("±", " ± ") if cell.paper else None
        if not (ours := self.ours.get((cell.row, cell.column))):
            return None, None, paper
        digits = cell.paper.digits if cell.paper else 2
        mean = f"{show_mean(ours.values, digits)} {self.marks().get(ours.protocol, '')}".rstrip()
        median = show_mean([median.value for median in ours.medians], digits) if ours.medians else None
        return mean, median, paper

    def notes(self) -> list[str]:
        """What our numbers are, what the marks mean, and what to know about the paper's numbers."""
        notes = ["Test accuracy in percent, mean ± deviation over folds; – if there is no number."]
        marks, medians = self.marks(), [median for ours in self.ours.values() for median in ours.medians]
        if self.ours:
            notes.append(self.describe_ours())
        if medians:
            notes.append(f"Median: of the last {describe_counts(medians)} of each run.")
        notes.append(f"The protocol is {self.protocol}{'; marked numbers differ from it:' if marks else '.'}")
        notes += [f"{mark} {protocol}" for protocol, mark in marks.items()]
        return [*notes, self.table.note] if self.table.note else notes

    def describe_ours(self) -> str:
        """Network, moment and hardware of our numbers."""
        networks = sorted({run.settings.train.evaluated for run in self.runs.values()})
        hardware = sorted({run.hardware for run in self.runs.values() if run.hardware})
        finished = [ours.group.length.finished for ours in self.ours.values()]
        moment = "after the last step" if any(finished) else "at the last evaluation of unfinished runs"
        if any(finished) and not all(finished):
            moment += ", of unfinished runs at their last evaluation"
        return "; ".join([f"Ours: {' or '.join(networks)} network {moment}, sample deviation", *hardware]) + "."

    def long(self) -> Table:
        """For a machine: one row per cell."""
        columns = ["row", "column", "mean", "std", "n", "steps", "schedule", "paper mean", "paper std", "difference"]
        columns += ["median", "median std", "evaluations", "departures"]
        return Table(columns, [self.long_row(cell) for cell in self.table.cells])

    def long_row(self, cell: Cell) -> list[object]:
        """A cell in numbers."""
        theirs = [cell.paper.mean, cell.paper.std] if cell.paper else [None, None]
        if not (ours := self.ours.get((cell.row, cell.column))):
            return [cell.row, cell.column, None, None, 0, None, None, *theirs, *[None] * 5]
        (mean, std), length = mean_and_deviation(ours.values), ours.group.length
        numbers = [mean, std, len(ours.values), length.steps, length.schedule]
        medians: list[float | None] = [None] * 3
        if ours.medians:
            counts = [median.evaluations for median in ours.medians]
            medians = [*mean_and_deviation([median.value for median in ours.medians]), min(counts)]
        difference = mean - cell.paper.mean if cell.paper else None
        return [cell.row, cell.column, *numbers, *theirs, difference, *medians, ours.departures or None]

    def write(self, out: Path) -> list[Path]:
        """Write `NAME.md` and `NAME.tex` for readers, `NAME.csv` and `NAME.json` for machines; return the paths."""
        grid, long = self.grid(), self.long()
        contents = {
            "md": f"{grid.title}\n\n{grid.markdown()}",
            "tex": replace(grid, title=self.table.title).latex(),
            "csv": long.csv(),
            "json": long.json() + "\n",
        }
        return write_texts(out, {f"{self.table.name}.{suffix}": text for suffix, text in contents.items()})


def describe_folds(folds: int, length: Length) -> str:
    """Number and length of folds in words: `3 folds of 1,000 steps`."""
    return f"{plural(folds, 'fold')} {'of' if length.finished else 'unfinished after'} {length.text} steps"


# From runs to numbers --------------------------------------------------------------------------------------------


def fill(plan: Plan, runs: Sequence[StoredRun], *, any_length: bool) -> Filled:
    """Fill the cells of a plan's table with the accuracies of the runs that they ask for.

    any_length: whether a run may have another number of steps than planned. If runs of one cell went unequally far,
    only the longest count, and unfinished runs count only if none is finished.
    """
    known = group_by(runs, lambda run: likeness(run.settings))
    found = {(own.cell.row, own.cell.column): fill_cell(own, known, any_length) for own in plan.cells}
    return Filled(plan.table, {place: ours for place, ours in found.items() if ours})


def fill_cell(planned: PlannedCell, known: Mapping[str, Sequence[StoredRun]], any_length: bool) -> Ours | None:
    """Our number in one cell; None without a run."""
    of_class = planned.cell.of_class
    read: Reader = partial(read_class, of_class) if of_class else attrgetter("accuracy")
    pairs = [(run, own.settings) for own in planned.runs for run in known.get(likeness(own.settings), [])]
    fitting = [run for run, wanted in pairs if any_length or run.settings.train.steps == wanted.train.steps]
    groups = group_runs([run for run in fitting if read(run) is not None])
    if not groups:
        return None
    longest = max(groups, key=lambda group: group.length)
    medians = [] if of_class else [run.median for run in longest.runs.values() if run.median]
    changes = departures(planned.protocol, planned.runs[0].settings)
    return Ours(longest, longest.values(read), medians, describe_departures(changes))


# Runs that are not in the table ----------------------------------------------------------------------------------


def describe_left_out(plan: Plan, runs: Sequence[StoredRun], filled: Filled, *, any_length: bool) -> list[str]:
    """Sentences about the runs that are not in the table, one for each reason."""
    shown, names = filled.runs, dict[str, list[str]]()
    for run in runs:
        if run.key not in shown:
            reason = why_left_out(plan, run, filled, any_length=any_length)
            names.setdefault(reason, []).append(f"{run.describe()}, {run.settings.train.steps:,} steps")
    more = {reason: [f"{len(own) - NAMED} more"] * (len(own) > NAMED) for reason, own in names.items()}
    return [f"Left out, because {reason}: {'; '.join([*own[:NAMED], *more[reason]])}." for reason, own in names.items()]


def why_left_out(plan: Plan, run: StoredRun, filled: Filled, *, any_length: bool) -> str:
    """The reason why a run is not in the table."""
    settings = run.settings
    values, fold = flatten(settings.identity()), settings.data.fold
    cells = [planned for planned in plan.cells if planned.cell.settings.items() <= values.items()]
    if not cells:
        return "no cell asks for such a run"
    wanted = [own.settings for planned in cells for own in planned.runs if own.settings.data.fold == fold]
    if not wanted:
        return f"the table asks for {plural(len(cells[0].runs), 'fold')}, from fold 0 on"
    if changes := departures(wanted[0], settings):
        return describe_departures(changes)
    if not any_length and settings.train.steps != wanted[0].train.steps:
        return f"train.steps is {settings.train.steps:,}, not {wanted[0].train.steps:,}"
    if not run.length:
        return "it was not evaluated yet"
    shown = [filled.ours.get((planned.cell.row, planned.cell.column)) for planned in cells]
    if any(ours and ours.group.length == run.length for ours in shown):
        return "the table shows another run of the same settings and fold"
    return "other runs of its cell went further"
