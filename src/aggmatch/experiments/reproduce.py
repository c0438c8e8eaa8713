"""Plans the runs that fill a table of the paper, and provides their data."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aggmatch.config import Layer
from aggmatch.data import SOURCES, Archive
from aggmatch.data.builtin.download import fetch
from aggmatch.errors import AggMatchError
from aggmatch.experiments.paper import Cell, PaperTable
from aggmatch.experiments.planned import PlannedRun, find_folder
from aggmatch.settings import CADENCE, RunSettings, TrainSettings, resolve

NAMED = ("data.name", "data.labels", "method.name")
"""Settings that have their own columns in every list of runs."""


@dataclass(frozen=True)
class PlannedCell:
    """A cell with its runs, one per fold."""

    cell: Cell
    runs: tuple[PlannedRun, ...]
    protocol: RunSettings
    """The settings that the table itself asks for, without changes, for fold 0."""


@dataclass(frozen=True)
class Plan:
    """A table or a part of it, with all the runs that it needs."""

    table: PaperTable
    cells: tuple[PlannedCell, ...]

    @property
    def runs(self) -> list[PlannedRun]:
        """Every run once, even if several cells show it."""
        return list({run.path: run for planned in self.cells for run in planned.runs}.values())

    def variant(self, run: PlannedRun) -> str:
        """How a run differs from others of its method, data set and number of labels: `slots 512`."""
        cell = next(planned.cell for planned in self.cells if run.path in (own.path for own in planned.runs))
        own = {key.split(".")[-1]: value for key, value in cell.settings.items() if key not in NAMED}
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in own.items()}
        return ", ".join(f"{key} {text}" for key, text in texts.items())


def narrow(table: PaperTable, wanted: Mapping[str, Sequence[Any]]) -> PaperTable:
    """The part of a table whose cells have one of the wanted values under each key."""
    for key, values in wanted.items():
        there = sorted({cell.settings[key] for cell in table.cells})
        if absent := [value for value in values if value not in there]:
            raise AggMatchError(
                f"Table {table.name} has no cell with {key} {absent[0]}. It has {', '.join(map(str, there))}."
            )
    cells = [cell for cell in table.cells if all(cell.settings[key] in values for key, values in wanted.items())]
    if not cells:
        asked = " and ".join(f"{key} {', '.join(map(str, values))}" for key, values in wanted.items())
        raise AggMatchError(f"Table {table.name} has no cell with {asked} at once. Leave one of them out.")
    return replace(table, cells=tuple(cells))


def plan(table: PaperTable, layers: Sequence[Layer], out: Path, folds: int | None = None) -> Plan:
    """Plan every run of a table: settings, all validated, and a folder in `out`.

    layers: changes for all cells. They cannot set what distinguishes the cells. folds: how many, from fold 0 on.
    """
    fixed = {"recipe", "data.fold", "data.split"}.union(*(cell.settings for cell in table.cells))
    for layer in layers:
        if taken := [key for key in layer.values if key in fixed]:
            raise AggMatchError(
                f"{taken[0]} cannot be set for table {table.name}, whose cells set it (from {layer.source}). "
                f"Choose cells with --methods, --data, --labels and --folds."
            )
    return Plan(table, tuple(plan_cell(table, cell, layers, out, folds or table.folds) for cell in table.cells))


def plan_cell(table: PaperTable, cell: Cell, layers: Sequence[Layer], out: Path, folds: int) -> PlannedCell:
    """Plan all folds of a cell."""
    settings = [settings_of(table, cell, fold, layers) for fold in range(folds)]
    paths = [find_folder(own, out) for own in settings]
    runs = tuple(PlannedRun(own, path, path.name) for own, path in zip(settings, paths, strict=True))
    return PlannedCell(cell, runs, settings_of(table, cell, 0, []))


def settings_of(table: PaperTable, cell: Cell, fold: int, layers: Sequence[Layer]) -> RunSettings:
    """Settings of one fold of a cell."""
    cadence = {f"train.{name}": getattr(TrainSettings, name) for name in CADENCE}  # of any length: it is in the name
    values = {"recipe": "paper", "train.steps": table.steps, **cadence, **cell.settings, "data.fold": fold}
    try:
        return resolve([Layer(f"table {table.name}", values), *layers])
    except AggMatchError as error:
        raise AggMatchError(f"In table {table.name}, {cell.row}: {error}") from None


# Data ------------------------------------------------------------------------------------------------------------


def require_data(runs: Sequence[PlannedRun], *, download: bool) -> None:
    """Raise an `AggMatchError` if files of a data set that unfinished runs need are missing; or download them."""
    missing = missing_files(runs)
    if download:
        for archives in missing.values():
            for archive in archives:
                fetch(archive, data_folder(runs))
    elif missing:
        size = sum(archive.size for archives in missing.values() for archive in archives) / 1e6
        ways = [f"Add --download to fetch {size:.0f} MB", "name another folder with --data-dir"]
        if others := sorted({run.settings.data.name for run in runs} - set(missing)):
            ways.append(f"choose others with --data {','.join(others)}")
        raise AggMatchError(f"Nothing was started: {describe_missing(runs)} {joined(ways, 'or')}.")


def missing_files(runs: Sequence[PlannedRun]) -> dict[str, list[Archive]]:
    """Missing files of each data set that unfinished runs need."""
    needed = dict.fromkeys(run.settings.data.name for run in runs if not run.finished)
    missing = {name: SOURCES.load(name).missing(data_folder(runs)) for name in needed}
    return {name: archives for name, archives in missing.items() if archives}


def describe_missing(runs: Sequence[PlannedRun]) -> str:
    """A sentence that names the missing data sets; empty if all data sets are there."""
    if not (missing := missing_files(runs)):
        return ""
    return f"{joined(missing, 'and')} {'is' if len(missing) == 1 else 'are'} not in {data_folder(runs)}."


def data_folder(runs: Sequence[PlannedRun]) -> Path:
    """The folder where all runs of a plan look for their data."""
    return Path(runs[0].settings.runtime.data_dir)


def joined(words: Iterable[str], last: str) -> str:
    """`a, b and c`."""
    *others, final = words
    return f"{', '.join(others)} {last} {final}" if others else final
