"""Stored runs as one table: the accuracy of each method, on which data, after how many steps."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, methodcaller
from pathlib import Path
from statistics import mean
from typing import Any

from aggmatch.errors import AggMatchError
from aggmatch.registry import short_name
from aggmatch.runs.stats import Length, departures, describe_counts, group_by, likeness
from aggmatch.runs.stored import StoredRun
from aggmatch.settings import RunSettings, resolve
from aggmatch.tables import Table, mean_and_deviation, show_mean

Reader = Callable[[StoredRun], float | None]
"""Reads one value of a run; None if the run does not have it."""


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their fold and went equally far: one row of the table.

    Runs on all labels of a folder differ as soon as their labels or images do.
    """

    length: Length
    runs: Mapping[int, StoredRun]
    """By fold."""
    duplicates: Sequence[StoredRun] = ()
    """Runs of the same settings and fold that were logged or evaluated less often; they are not shown."""

    @property
    def settings(self) -> RunSettings:
        """Settings of the first run."""
        return next(iter(self.runs.values())).settings

    @property
    def labels(self) -> int | None:
        """Number of labels of the first run; None if it is unknown."""
        return next(iter(self.runs.values())).labels

    @property
    def task(self) -> tuple[str, int | None]:
        """Data set and number of labels: rows can be compared if these are equal."""
        return self.settings.data.name, self.labels

    def values(self, read: Reader) -> list[float]:
        """One value of each run; empty if any run lacks it."""
        values = [read(run) for run in self.runs.values()]
        return [] if None in values else [value for value in values if value is not None]

    @property
    def changes(self) -> list[str]:
        """Settings that differ from the recipe: `method.slots=512`, `optim.lr=0.01`."""
        data = self.settings.data
        chosen = {"data.name": data.name, "data.labels": data.labels, "method.name": self.settings.method_name}
        changed = departures(resolve({**chosen, "recipe": self.settings.recipe}), self.settings)
        return [f"{key}={json.dumps(done)}".replace('"', "") for key, (_, done) in changed.items()]

    @property
    def facts(self) -> dict[str, Any]:
        """What a reader must know about the numbers, by column heading."""
        data = self.settings.data
        return {
            "data": data.name,
            "labels": self.labels,
            "fold": ", ".join(map(str, self.runs)),
            "steps": self.length.text,
            "recipe": self.settings.recipe,
            "network": self.settings.train.evaluated,
            "with": ", ".join(self.changes),
        }


def group_runs(runs: Sequence[StoredRun]) -> list[Group]:
    """Group runs of one configuration and length; the best group comes first within a data set and number of labels.

    Runs that were not evaluated yet are left out.
    """
    found: dict[tuple[str, str, Length], list[StoredRun]] = {}
    for run in runs:
        if run.length:
            alike = likeness(run.settings, any_fold=True), json.dumps(run.given)
            found.setdefault((*alike, run.length), []).append(run)
    groups = [make_group(length, members) for (*_, length), members in found.items()]
    tasks = list(dict.fromkeys(group.task for group in groups))
    return sorted(
        groups, key=lambda group: (tasks.index(group.task), -mean(group.values(attrgetter("accuracy")) or [-1]))
    )


def make_group(length: Length, runs: Sequence[StoredRun]) -> Group:
    """The group of equally long runs of one configuration; of several runs of one fold, it shows the most complete."""
    by_fold = group_by(runs, lambda run: run.settings.data.fold)
    shown = {fold: max(same_fold, key=lambda run: run.completeness) for fold, same_fold in sorted(by_fold.items())}
    return Group(length, shown, [run for run in runs if run not in shown.values()])


@dataclass(frozen=True)
class ResultsTable:
    """Accuracy and median of groups of runs.

    at: adds accuracies after these steps. by_class: adds those of classes. reach: adds the minutes until a run had
    these accuracies in percent.

    Example: `ResultsTable(group_runs([read_run(Path("runs/mine"))])).printed("md")`.
    """

    groups: Sequence[Group]
    at: Sequence[int] = ()
    by_class: bool = False
    reach: Sequence[float] = ()

    def __post_init__(self) -> None:
        if not self.groups:
            raise AggMatchError("There is nothing to show yet: no run was evaluated.")

    @property
    def runs(self) -> list[StoredRun]:
        """All runs whose values the table shows."""
        return [run for group in self.groups for run in group.runs.values()]

    @property
    def duplicates(self) -> list[StoredRun]:
        """Runs that are not shown because another run of the same settings is."""
        return [run for group in self.groups for run in group.duplicates]

    def readers(self) -> dict[str, Reader]:
        """The values to show, by column heading."""
        readers: dict[str, Reader] = {f"{step:,}": partial(read_step, step) for step in self.at}
        if self.by_class:
            readers |= {name: partial(read_class, name) for run in self.runs for name in run.class_accuracy}
        readers |= {"accuracy": attrgetter("accuracy"), "median": read_median}
        readers |= {f"minutes to {percent:g} %": methodcaller("minutes_to", percent) for percent in self.reach}
        precision, coverage = (partial(read_pseudo_labels, name) for name in ("precision", "coverage"))
        if not (self.at or self.by_class or self.reach) and any(group.values(precision) for group in self.groups):
            readers |= {"pseudo labels right": precision, "used": coverage}
        return readers

    def for_readers(self) -> Table:
        """Mean ± sample deviation over folds. Facts that all rows share are in the title, the others in columns."""
        common = [change for change in self.groups[0].changes if all(change in group.changes for group in self.groups)]
        facts = self.short_facts(common)
        shared = {name: text for name, text in facts[0].items() if all(own[name] == text for own in facts)}
        differing = [name for name in facts[0] if name not in shared]
        readers = self.readers()
        rows = [
            [short_name(group.settings.method_name), *(own[name] for name in differing)]
            + [show_mean(values) if (values := group.values(read)) else None for read in readers.values()]
            for group, own in zip(self.groups, facts, strict=True)
        ]
        medians = [run.median for run in self.runs if run.median]
        notes = [f"Median: of the last {describe_counts(medians)}."] if medians else []
        return Table(["method", *differing, *readers], rows, self.title(shared | {"with": ", ".join(common)}), notes)

    def short_facts(self, common: Collection[str]) -> list[dict[str, Any]]:
        """The facts of each row without changed settings that all rows have in common.

        A path is cut to its last part if no other path ends in the same.
        """
        names = {name: Path(short_name(name)).name for name in (group.settings.data.name for group in self.groups)}
        counts = Counter(names.values())
        unique = {name: name if counts[short] > 1 else short for name, short in names.items()}
        return [
            group.facts
            | {"data": unique[group.settings.data.name]}
            | {"with": ", ".join(change for change in group.changes if change not in common)}
            for group in self.groups
        ]

    def title(self, shared: Mapping[str, Any]) -> str:
        """What all values have in common."""
        fold = "folds {}" if len(self.groups[0].runs) > 1 else "fold {}"
        forms = {"fold": fold, "with": "with {}"}
        forms |= {name: f"{{}} {name}" for name in ("labels", "steps", "recipe", "network")}
        texts = [forms.get(name, "{}").format(text) for name, text in shared.items() if text]
        hardware = sorted({run.hardware for run in self.runs if run.hardware})
        spread = ["mean ± sample deviation over folds"] if any(len(group.runs) > 1 for group in self.groups) else []
        return f"Test accuracy in percent: {', '.join([*texts, *spread, *hardware])}"

    def for_machines(self) -> Table:
        """Every number in its own column."""
        readers = self.readers()
        columns = ["method", *self.groups[0].facts, "schedule", "n"]
        columns += [column for name in readers for column in (name, f"{name} std")]
        rows: list[list[object]] = []
        for group in self.groups:
            facts = group.facts | {"steps": group.length.steps, "schedule": group.length.schedule}
            row: list[object] = [group.settings.method_name, *facts.values(), len(group.runs)]
            for read in readers.values():
                values = group.values(read)
                row += mean_and_deviation(values) if values else (None, None)
            rows.append(row)
        return Table(columns, rows)

    def printed(self, form: str) -> str:
        """The table as text: `md` or `tex` for readers, `csv` or `json` for machines."""
        readers, machines = self.for_readers(), self.for_machines()
        forms = {
            "md": lambda: f"{readers.title}\n\n{readers.markdown()}",
            "tex": readers.latex,
            "csv": machines.csv,
            "json": machines.json,
        }
        if form not in forms:
            raise AggMatchError(f"--as must be one of {', '.join(forms)}, got '{form}'.")
        return forms[form]()


# Values of a run -------------------------------------------------------------------------------------------------


def read_median(run: StoredRun) -> float | None:
    """Median of the last evaluations."""
    return run.median.value if run.median else None


def read_step(step: int, run: StoredRun) -> float | None:
    """Accuracy after a number of steps, if the run was evaluated then."""
    return dict(run.evaluations).get(step)


def read_class(name: str, run: StoredRun) -> float | None:
    """Accuracy of a class."""
    return run.class_accuracy.get(name)


def read_pseudo_labels(name: str, run: StoredRun) -> float | None:
    """A pseudo-label value at the last evaluation, in percent."""
    value = run.curve[-1].get(f"pseudo_{name}") if run.curve else None
    return None if value is None else 100 * value
