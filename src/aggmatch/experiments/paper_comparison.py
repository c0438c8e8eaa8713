"""Our figures beside the paper's: from results to a table that says of every figure how it was come by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aggmatch.config import flatten
from aggmatch.experiments.paper import Cell, PaperTable
from aggmatch.experiments.reproduce import Plan, PlannedCell
from aggmatch.files import make_folder, write_atomically
from aggmatch.runs.results import Result
from aggmatch.runs.stats import (
    Length,
    Median,
    departures,
    describe_counts,
    describe_departures,
    last_median,
    likeness,
    measure,
)
from aggmatch.settings import RunSettings
from aggmatch.tables import Table, mean_and_deviation, plural, show_mean

MARKS = "†‡§¶"
NAMED = 3
"""Results left out for one reason that are named; of more it is said how many."""


@dataclass(frozen=True)
class Ours:
    """Our figure of a cell: accuracies of folds that all went equally far."""

    values: tuple[float, ...]
    length: Length
    results: tuple[Result, ...]
    medians: tuple[Median, ...]
    """Of each fold; none of a single class."""
    departures: str
    """Settings that are not the table's, in words."""

    @property
    def protocol(self) -> str:
        """How many runs of what length, and what else sets them apart from what the table asks for."""
        folds = describe_folds(len(self.values), self.length)
        return f"{folds}; {self.departures}" if self.departures else folds


@dataclass(frozen=True)
class Filled:
    """A table with our figure, if there is one, in each of its cells."""

    table: PaperTable
    ours: Mapping[tuple[str, str], Ours]
    """By row and column."""

    @property
    def protocol(self) -> str:
        """How many runs of what length a cell is to have."""
        return describe_folds(self.table.folds, Length(True, self.table.steps, self.table.steps))

    @property
    def used(self) -> set[str]:
        """Keys of the results in it."""
        return {result.key for ours in self.ours.values() for result in ours.results}

    def fitting(self, width: int) -> Table:
        """For a terminal of this width: as in the paper if it fits, or else one line a cell."""
        grid = self.grid()
        return grid if grid.width <= width else self.listing()

    def grid(self) -> Table:
        """For a reader: laid out as in the paper, ours above the paper's."""
        cells = {(cell.row, cell.column): cell for cell in self.table.cells}
        rows = []
        for row in self.table.rows:
            shown = [self.show(cells.get((row, column))) for column in self.table.columns]
            for number, name in enumerate(("ours", "median", "paper")):
                figures = [figure[number] for figure in shown]
                if name != "median" or any(figures):
                    rows.append(["" if number else row, name, *figures])
        return Table([self.table.corner, "", *self.table.columns], rows, self.table.heading, self.notes())

    def listing(self) -> Table:
        """For a reader with little room: one line a cell."""
        columns = [self.table.corner, self.table.across, "ours", "median", "paper"]
        rows = [[cell.row, cell.column, *self.show(cell)] for cell in self.table.cells]
        return Table(columns, rows, self.table.heading, self.notes())

    def marks(self) -> dict[str, str]:
        """Protocol that departs from the table's → its mark."""
        departing = dict.fromkeys(ours.protocol for ours in self.ours.values() if ours.protocol != self.protocol)
        return {protocol: MARKS[n % len(MARKS)] * (1 + n // len(MARKS)) for n, protocol in enumerate(departing)}

    def show(self, cell: Cell | None) -> tuple[str | None, str | None, str | None]:
        """Our figure of a cell with its mark, its median, and the paper's figure, all with as many digits."""
        if cell is None:
            return None, None, None
        paper = cell.paper.text.replace("±", " ± ") if cell.paper else None
        if not (ours := self.ours.get((cell.row, cell.column))):
            return None, None, paper
        digits = cell.paper.digits if cell.paper else 2
        figure = f"{show_mean(ours.values, digits)} {self.marks().get(ours.protocol, '')}".rstrip()
        median = show_mean([median.value for median in ours.medians], digits) if ours.medians else None
        return figure, median, paper

    def notes(self) -> list[str]:
        """What our figures are, what the marks mean, and what to know about the paper's."""
        notes = ["Test accuracy in percent, mean ± deviation over folds; – where there is no figure."]
        marks, medians = self.marks(), [median for ours in self.ours.values() for median in ours.medians]
        if self.ours:
            notes.append(self.describe_ours())
        if medians:
            notes.append(f"Median: of the last {describe_counts(medians)} of each run.")
        notes.append(f"The protocol is {self.protocol}{'; marked figures depart from it:' if marks else '.'}")
        notes += [f"{mark} {protocol}" for protocol, mark in marks.items()]
        return [*notes, self.table.note] if self.table.note else notes

    def describe_ours(self) -> str:
        """Network, moment and hardware of our figures."""
        results = [result for ours in self.ours.values() for result in ours.results]
        networks = sorted({result.settings.train.evaluated for result in results if result.settings})
        hardware = sorted({result.hardware for result in results if result.hardware})
        finished = [ours.length.finished for ours in self.ours.values()]
        moment = "after the last step" if any(finished) else "at the last evaluation of unfinished runs"
        if any(finished) and not all(finished):
            moment += ", of unfinished runs at their last evaluation"
        return "; ".join([f"Ours: {' or '.join(networks)} network {moment}, sample deviation", *hardware]) + "."

    def long(self) -> Table:
        """For a machine: one row a cell."""
        columns = ["row", "column", "mean", "std", "n", "steps", "schedule", "paper mean", "paper std", "difference"]
        columns += ["median", "median std", "evaluations", "departures"]
        return Table(columns, [self.long_row(cell) for cell in self.table.cells])

    def long_row(self, cell: Cell) -> list[object]:
        """A cell in numbers."""
        theirs = [cell.paper.mean, cell.paper.std] if cell.paper else [None, None]
        if not (ours := self.ours.get((cell.row, cell.column))):
            return [cell.row, cell.column, None, None, 0, None, None, *theirs, *[None] * 5]
        mean, std = mean_and_deviation(ours.values)
        figures = [mean, std, len(ours.values), ours.length.steps, ours.length.schedule]
        medians: list[float | None] = [None] * 3
        if ours.medians:
            counts = [median.evaluations for median in ours.medians]
            medians = [*mean_and_deviation([median.value for median in ours.medians]), min(counts)]
        difference = mean - cell.paper.mean if cell.paper else None
        return [cell.row, cell.column, *figures, *theirs, difference, *medians, ours.departures or None]

    def write(self, out: Path) -> list[Path]:
        """Write `main.md` and `main.tex` for readers, `main.csv` and `main.json` for machines."""
        grid, long = self.grid(), self.long()
        contents = {
            "md": f"{grid.title}\n\n{grid.markdown()}",
            "tex": replace(grid, title=self.table.title).latex(),
            "csv": long.csv(),
            "json": long.json() + "\n",
        }
        make_folder(out)
        paths = [out / f"{self.table.name}.{suffix}" for suffix in contents]
        for path, content in zip(paths, contents.values(), strict=True):
            write_atomically(path, content.encode())
        return paths


def describe_folds(folds: int, length: Length) -> str:
    """So many folds of so many steps, in words."""
    return f"{plural(folds, 'fold')} {'of' if length.finished else 'unfinished after'} {length.text} steps"


# From results to figures -----------------------------------------------------------------------------------------


def fill(plan: Plan, results: Sequence[Result], *, any_length: bool) -> Filled:
    """Put the results into the cells whose runs they are, those of other runs aside.

    With `any_length` a run may have had another number of steps than planned. Where runs of a cell went unequally far,
    finished ones count before unfinished ones and long ones before short ones, and the others not at all.
    """
    known: dict[str, list[tuple[RunSettings, Result]]] = {}
    for result in results:
        if settings := result.settings:
            known.setdefault(likeness(settings), []).append((settings, result))
    ours = {}
    for planned in plan.cells:
        if figure := fill_cell(planned, known, any_length):
            ours[planned.cell.row, planned.cell.column] = figure
    return Filled(plan.table, ours)


def fill_cell(
    planned: PlannedCell, known: Mapping[str, list[tuple[RunSettings, Result]]], any_length: bool
) -> Ours | None:
    """Our figure of one cell; none without a result."""
    found: dict[Length, dict[int, tuple[float, Result, Median | None]]] = {}
    of_class = planned.cell.of_class
    for run in planned.runs:
        for settings, result in known.get(likeness(run.settings), []):
            fits = any_length or settings.train.steps == run.settings.train.steps
            if fits and (measured := measure(result, settings, of_class)):
                value, length = measured
                median = None if of_class else last_median(result, settings)
                folds, fold = found.setdefault(length, {}), settings.data.fold
                if fold not in folds or result.standing > folds[fold][1].standing:  # they differ in cadence alone
                    folds[fold] = value, result, median
    if not found:
        return None
    longest = max(found)
    values, used, medians = zip(*found[longest].values(), strict=True)
    changes = departures(planned.protocol, planned.runs[0].settings)
    return Ours(values, longest, used, tuple(filter(None, medians)), describe_departures(changes))


# Results without a place -----------------------------------------------------------------------------------------


def say_left_out(plan: Plan, results: Sequence[Result], filled: Filled, *, any_length: bool) -> list[str]:
    """Sentences on the results that are not in the table, one for each reason."""
    names: dict[str, list[str]] = {}
    for result in results:
        settings = result.settings
        if settings is None:
            names.setdefault("this version cannot run it", []).append("a stored run")
        elif result.key not in filled.used:
            reason = why_left_out(plan, settings, result, filled, any_length=any_length)
            names.setdefault(reason, []).append(describe_run(settings))
    return [f"Left out, because {reason}: {shorten(runs)}." for reason, runs in names.items()]


def why_left_out(plan: Plan, settings: RunSettings, result: Result, filled: Filled, *, any_length: bool) -> str:
    """What a result lacks to be in a table."""
    values, fold = flatten(settings.identity()), settings.data.fold
    cells = [own for own in plan.cells if own.cell.settings.items() <= values.items()]
    if not cells:
        return "no cell asks for such a run"
    wanted = [run.settings for own in cells for run in own.runs if run.settings.data.fold == fold]
    if not wanted:
        return f"only {plural(len(cells[0].runs), 'fold')} from 0 on are asked for"
    if changes := departures(wanted[0], settings):
        return describe_departures(changes)
    if not any_length and settings.train.steps != wanted[0].train.steps:
        return f"train.steps is {settings.train.steps:,}, not {wanted[0].train.steps:,}"
    if not (measured := measure(result, settings)):
        return "it was not evaluated yet"
    shown = [filled.ours.get((own.cell.row, own.cell.column)) for own in cells]
    if any(ours and ours.length == measured[1] for ours in shown):
        return "another one of the same settings and fold is there"
    return "others of its cell went further"


def describe_run(settings: RunSettings) -> str:
    """A run in a few words."""
    data = settings.data
    named = f"{settings.method_name} on {data.name}, {data.labels} labels, fold {data.fold}"
    return f"{named}, {settings.train.steps:,} steps"


def shorten(names: Sequence[str]) -> str:
    """The first few names and how many more there are."""
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    return "; ".join([*names[:NAMED], *more])
