"""Our figures beside the paper's: from results to a table that says of every figure how it was come by."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from aggmatch.config import Layer, differences, flatten
from aggmatch.errors import AggMatchError
from aggmatch.experiments.paper import Cell, PaperTable
from aggmatch.experiments.reproduce import Plan, PlannedCell
from aggmatch.experiments.results import Result
from aggmatch.files import make_folder, write_atomically
from aggmatch.tables import Table, mean_and_deviation, plural, show_mean
from aggmatch.training.settings import RunSettings, resolve

CADENCE = ("steps", "log_every", "evaluate_every")
"""Settings of section `train` in which stored runs of one cell may differ: how long and how often."""
MARKS = "†‡§¶"


class Length(NamedTuple):
    """How far runs went; by this order the better founded figure comes last."""

    finished: bool
    steps: int
    """Steps after which the accuracy was measured."""
    schedule: int
    """Steps that the run was planned to have."""


@dataclass(frozen=True)
class Ours:
    """Our figure of a cell: accuracies of folds that all went equally far."""

    values: tuple[float, ...]
    length: Length
    results: tuple[Result, ...]

    @property
    def text(self) -> str:
        """As a reader sees it: 92.54 ± 0.76."""
        return show_mean(self.values)

    @property
    def protocol(self) -> str:
        """How many runs of what length."""
        return describe_protocol(len(self.values), self.length)


@dataclass(frozen=True)
class Filled:
    """A table with our figure, if there is one, in each of its cells."""

    table: PaperTable
    ours: Mapping[tuple[str, str], Ours]
    """By row and column."""

    @property
    def protocol(self) -> str:
        """How many runs of what length a cell is to have."""
        return describe_protocol(self.table.folds, Length(True, self.table.steps, self.table.steps))

    @property
    def used(self) -> int:
        """How many results are in it."""
        return len({result.key for ours in self.ours.values() for result in ours.results})

    def fitting(self, width: int) -> Table:
        """For a terminal of this width: as in the paper if it fits, or else one line a cell."""
        grid = self.grid()
        return grid if grid.width <= width else self.listing()

    def grid(self) -> Table:
        """For a reader: laid out as in the paper, ours above the paper's."""
        cells = {(cell.row, cell.column): cell for cell in self.table.cells}
        marks = self.marks()
        rows = []
        for row in self.table.rows:
            places = [(row, column) for column in self.table.columns]
            rows.append([row, "ours", *(self.show(marks, place) for place in places)])
            rows.append(["", "paper", *(show_paper(cells.get(place)) for place in places)])
        return Table([self.table.corner, "", *self.table.columns], rows, self.table.heading, self.notes(marks))

    def listing(self) -> Table:
        """For a reader with little room: one line a cell, its number of folds and steps in columns instead of marks."""
        rows = []
        for cell in self.table.cells:
            ours = self.ours.get((cell.row, cell.column))
            facts = [ours.text, len(ours.values), describe_steps(ours.length)] if ours else [None] * 3
            rows.append([cell.row, cell.column, show_paper(cell), *facts])
        return Table(
            [self.table.corner, "", "paper", "ours", "folds", "steps"], rows, self.table.heading, self.notes({})
        )

    def marks(self) -> dict[str, str]:
        """Protocol that departs from the table's → its mark."""
        departing = dict.fromkeys(ours.protocol for ours in self.ours.values() if ours.protocol != self.protocol)
        return {protocol: MARKS[n % len(MARKS)] * (1 + n // len(MARKS)) for n, protocol in enumerate(departing)}

    def show(self, marks: Mapping[str, str], place: tuple[str, str]) -> str | None:
        """Our figure of a cell with its mark."""
        if place not in self.ours:
            return None
        ours = self.ours[place]
        return f"{ours.text} {marks.get(ours.protocol, '')}".rstrip()

    def notes(self, marks: Mapping[str, str]) -> list[str]:
        """What our figures are, what the marks mean, and what to know about the paper's."""
        results = [result for ours in self.ours.values() for result in ours.results]
        networks = sorted({result.configuration["train"]["evaluated"] for result in results})
        hardware = sorted({result.hardware for result in results if result.hardware})
        notes = ["Test accuracy in percent, mean ± deviation over folds; – where there is no figure."]
        if results:
            what = f"Ours: {' or '.join(networks)} network after the last step, sample deviation"
            notes.append(f"{what}; {'; '.join(hardware)}." if hardware else f"{what}.")
        notes.append(f"The protocol is {self.protocol}{'; marked figures depart from it:' if marks else '.'}")
        notes += [f"{mark} {protocol}" for protocol, mark in marks.items()]
        return [*notes, self.table.note] if self.table.note else notes

    def long(self) -> Table:
        """For a machine: one row a cell."""
        columns = ["row", "column", "mean", "std", "n", "steps", "schedule", "paper mean", "paper std", "difference"]
        return Table(columns, [self.long_row(cell) for cell in self.table.cells])

    def long_row(self, cell: Cell) -> list[object]:
        """A cell in numbers."""
        ours = self.ours.get((cell.row, cell.column))
        mean, std = mean_and_deviation(ours.values) if ours else (None, None)
        count, steps, schedule = (len(ours.values), *ours.length[1:]) if ours else (0, None, None)
        theirs, spread = (cell.paper.mean, cell.paper.std) if cell.paper else (None, None)
        difference = None if mean is None or theirs is None else mean - theirs
        return [cell.row, cell.column, mean, std, count, steps, schedule, theirs, spread, difference]

    def write(self, out: Path) -> list[Path]:
        """Write `main.md` and `main.tex` for readers, `main.csv` and `main.json` for machines."""
        grid, long = self.grid(), self.long()
        contents = {
            "md": f"{grid.title}\n\n{grid.markdown()}",
            "tex": grid.latex(),
            "csv": long.csv(),
            "json": long.json() + "\n",
        }
        make_folder(out)
        paths = [out / f"{self.table.name}.{suffix}" for suffix in contents]
        for path, content in zip(paths, contents.values(), strict=True):
            write_atomically(path, content.encode())
        return paths


def describe_protocol(folds: int, length: Length) -> str:
    """So many folds of so many steps, in words."""
    return f"{plural(folds, 'fold')} {'of' if length.finished else 'unfinished after'} {describe_steps(length)} steps"


def describe_steps(length: Length) -> str:
    """The steps that were done, and of how many where some are left."""
    return f"{length.steps:,}" if length.finished else f"{length.steps:,} of {length.schedule:,}"


def show_paper(cell: Cell | None) -> str | None:
    """The paper's figure of a cell."""
    return cell.paper.text.replace("±", " ± ") if cell and cell.paper else None


# From results to figures -----------------------------------------------------------------------------------------


def fill(plan: Plan, results: Sequence[Result], *, any_length: bool) -> Filled:
    """Put the results into the cells whose runs they are, those of other runs aside.

    With `any_length` a run may have had another number of steps than planned. Where runs of a cell went unequally far,
    finished ones count before unfinished ones and long ones before short ones, and the others not at all.
    """
    known: dict[str, list[tuple[RunSettings, Result]]] = {}
    for result in results:
        if settings := understood(result):
            complete = replace(result, configuration=settings.identity())
            known.setdefault(likeness(settings), []).append((settings, complete))
    ours = {}
    for planned in plan.cells:
        if figure := fill_cell(planned, known, any_length):
            ours[planned.cell.row, planned.cell.column] = figure
    return Filled(plan.table, ours)


def fill_cell(
    planned: PlannedCell, known: Mapping[str, list[tuple[RunSettings, Result]]], any_length: bool
) -> Ours | None:
    """Our figure of one cell; none without a result."""
    found: dict[Length, dict[int, tuple[float, Result]]] = {}
    for run in planned.runs:
        for settings, result in known.get(likeness(run.settings), []):
            fits = any_length or settings.train.steps == run.settings.train.steps
            if fits and (measured := measure(result, settings, planned.cell.of_class)):
                value, length = measured
                found.setdefault(length, {})[settings.data.fold] = value, result
    if not found:
        return None
    longest = max(found)
    values, used = zip(*found[longest].values(), strict=True)
    return Ours(values, longest, used)


def measure(result: Result, settings: RunSettings, of_class: str | None) -> tuple[float, Length] | None:
    """Accuracy of a run and the steps it had by then; of an unfinished one its last evaluation."""
    schedule = settings.train.steps
    if result.result is not None:
        by_class = result.result.get("class_accuracy", {})
        value = by_class.get(of_class) if of_class else result.result["accuracy"]
        return None if value is None else (value, Length(True, result.steps, schedule))
    if of_class or not result.curve:
        return None
    last = result.curve[-1]
    return last[f"accuracy_{settings.train.evaluated}"], Length(False, last["step"], schedule)


def understood(result: Result) -> RunSettings | None:
    """Settings of a result, newer ones than it has at their defaults; none if this version cannot run it."""
    try:
        return resolve([Layer("a stored result", result.configuration)])
    except AggMatchError:
        return None


def likeness(settings: RunSettings) -> str:
    """What runs of one cell and fold have in common, as a text."""
    return json.dumps(without_cadence(settings), sort_keys=True)


def without_cadence(settings: RunSettings) -> dict[str, Any]:
    """What decides the result of a run except how long it was."""
    identity = settings.identity()
    identity["train"] = {name: value for name, value in identity["train"].items() if name not in CADENCE}
    return identity


def say_left_out(plan: Plan, results: Sequence[Result]) -> list[str]:
    """Sentences on results that have all that a cell asks for and yet differ from its runs, naming the settings."""
    sentences = []
    for settings in filter(None, map(understood, results)):
        values, data = flatten(settings.identity()), settings.data
        cells = [own for own in plan.cells if own.cell.settings.items() <= values.items()]
        wanted = [run.settings for own in cells for run in own.runs if run.settings.data.fold == data.fold]
        if wanted and (changes := differences(without_cadence(wanted[0]), without_cadence(settings))):
            listed = "; ".join(f"{key} is {ours!r}, not {planned!r}" for key, (planned, ours) in changes.items())
            name = f"{settings.method_name} on {data.name}, {data.labels} labels, fold {data.fold}"
            sentences.append(f"Left out: {name}, because {listed}.")
    return sentences
