"""Stored results as a table of their own: who was how good, on what, after how many steps."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aggmatch.errors import AggMatchError
from aggmatch.runs.results import Result
from aggmatch.runs.stats import (
    Length,
    Median,
    departures,
    describe_counts,
    last_median,
    measure,
    without_cadence,
)
from aggmatch.settings import RunSettings, resolve
from aggmatch.tables import Table, mean_and_deviation, show_mean

Reader = Callable[[Result, RunSettings], float | None]
"""Takes a figure from a result; None where it has none."""


@dataclass(frozen=True)
class Group:
    """Runs that differ in their fold alone and went equally far: one row."""

    length: Length
    settings: RunSettings
    """Of the first of them."""
    runs: Mapping[int, Result]
    """By fold."""
    others: Sequence[Result] = ()
    """Runs that differ from one of these only in how often they were logged or evaluated, and are no better founded."""

    def values(self, read: Reader) -> list[float]:
        """A figure of each run; none at all if one lacks it."""
        values = [read(run, self.settings) for run in self.runs.values()]
        return [] if None in values else [value for value in values if value is not None]

    @property
    def changes(self) -> str:
        """Settings that are not those of the recipe: `method.slots=512, optim.lr=0.01`."""
        data = self.settings.data
        chosen = {"data.name": data.name, "data.labels": data.labels, "method.name": self.settings.method_name}
        changed = departures(resolve(chosen), self.settings)
        return ", ".join(f"{key}={json.dumps(done)}".replace('"', "") for key, (_, done) in changed.items())

    @property
    def facts(self) -> dict[str, Any]:
        """What a reader must know of the figures, by the heading of its column."""
        data = self.settings.data
        return {
            "data": data.name,
            "labels": data.labels,
            "fold": ", ".join(map(str, self.runs)),
            "steps": self.length.text,
            "network": self.settings.train.evaluated,
            "with": self.changes,
        }


def group(results: Sequence[Result]) -> list[Group]:
    """Runs of one configuration together, best first within a data set and a number of labels.

    Runs that were not evaluated yet and those that this version does not understand are left out.
    """
    found: dict[tuple[str, Length], list[tuple[RunSettings, Result]]] = {}
    for result in results:
        settings = result.settings
        if settings and (measured := measure(result, settings)):
            identity = without_cadence(settings)
            identity["data"] = {**identity["data"], "fold": None}
            key = json.dumps(identity, sort_keys=True), measured[1]
            found.setdefault(key, []).append((settings, result))
    groups = [group_of(length, runs) for (_, length), runs in found.items()]
    problems = list(dict.fromkeys(map(problem, groups)))
    return sorted(groups, key=lambda own: (problems.index(problem(own)), -mean_and_deviation(own.values(accuracy))[0]))


def group_of(length: Length, runs: Sequence[tuple[RunSettings, Result]]) -> Group:
    """Equally long runs of one configuration; of several of one fold, the best founded is shown."""
    by_fold: dict[int, list[Result]] = {}
    for settings, result in runs:
        by_fold.setdefault(settings.data.fold, []).append(result)
    shown = {fold: max(of_fold, key=lambda result: result.standing) for fold, of_fold in sorted(by_fold.items())}
    others = [result for _, result in runs if result not in shown.values()]
    return Group(length, runs[0][0], shown, others)


def problem(own: Group) -> tuple[str, int | None]:
    """What is to be learnt; only rows with the same can be compared."""
    return own.settings.data.name, own.settings.data.labels


@dataclass(frozen=True)
class Overview:
    """A table of results: accuracy and median, beside them accuracies of some steps or of the classes if asked for."""

    groups: Sequence[Group]
    at: Sequence[int] = ()
    by_class: bool = False

    def __post_init__(self) -> None:
        if not self.groups:
            raise AggMatchError("There is nothing to show yet: no run was evaluated that this version understands.")

    @property
    def results(self) -> list[Result]:
        """All that is in it."""
        return [result for own in self.groups for result in own.runs.values()]

    @property
    def others(self) -> list[Result]:
        """Those in whose place another run of the same settings is shown."""
        return [result for own in self.groups for result in own.others]

    @property
    def medians(self) -> list[Median]:
        """Of all that is in it."""
        medians = [last_median(result, own.settings) for own in self.groups for result in own.runs.values()]
        return [own for own in medians if own]

    @property
    def has_pseudo_labels(self) -> bool:
        """Whether any of its methods makes pseudo labels."""
        return any(own.values(of_pseudo("precision")) for own in self.groups)

    def readers(self) -> dict[str, Reader]:
        """The figures to show, by their headings."""
        readers: dict[str, Reader] = {f"{step:,}": at_step(step) for step in self.at}
        if self.by_class:
            readers |= {name: of_class(name) for result in self.results for name in class_accuracies(result)}
        readers |= {"accuracy": accuracy, "median": median}
        if not self.at and not self.by_class and self.has_pseudo_labels:
            readers |= {"pseudo labels right": of_pseudo("precision"), "used": of_pseudo("coverage")}
        return readers

    def for_readers(self) -> Table:
        """Mean ± sample deviation over folds. What all rows share stands in the title, the rest in columns."""
        facts = self.facts_for_readers()
        shared = {name: text for name, text in facts[0].items() if all(own[name] == text for own in facts)}
        apart = [name for name in facts[0] if name not in shared]
        readers = self.readers()
        rows = [
            [own.settings.method_name, *(known[name] for name in apart)]
            + [show_mean(values) if (values := own.values(read)) else None for read in readers.values()]
            for own, known in zip(self.groups, facts, strict=True)
        ]
        notes = [f"Median: of the last {describe_counts(self.medians)}."] if self.medians else []
        return Table(["method", *apart, *readers], rows, self.title(shared), notes)

    def facts_for_readers(self) -> list[dict[str, Any]]:
        """Facts of each row; a folder of images is called by the last part of its path if no other has the same."""
        paths = {own.settings.data.name for own in self.groups}
        ends = Counter(Path(path).name for path in paths)
        names = {path: path if ends[Path(path).name] > 1 else Path(path).name for path in paths}
        return [own.facts | {"data": names[own.settings.data.name]} for own in self.groups]

    def title(self, shared: Mapping[str, Any]) -> str:
        """What all figures have in common."""
        fold = "folds {}" if len(self.groups[0].runs) > 1 else "fold {}"
        forms = {"labels": "{} labels", "fold": fold, "steps": "{} steps", "network": "{} network", "with": "with {}"}
        texts = [forms.get(name, "{}").format(text) for name, text in shared.items() if text]
        hardware = sorted({result.hardware for result in self.results if result.hardware})
        spread = ["mean ± sample deviation over folds"] if any(len(own.runs) > 1 for own in self.groups) else []
        return f"Test accuracy in percent: {', '.join([*texts, *spread, *hardware])}"

    def for_machines(self) -> Table:
        """Every number in a column of its own."""
        readers = self.readers()
        columns = ["method", *self.groups[0].facts, "schedule", "n"]
        columns += [column for name in readers for column in (name, f"{name} std")]
        rows: list[list[object]] = []
        for own in self.groups:
            facts = own.facts | {"steps": own.length.steps, "schedule": own.length.schedule}
            row: list[object] = [own.settings.method_name, *facts.values(), len(own.runs)]
            for read in readers.values():
                values = own.values(read)
                row += mean_and_deviation(values) if values else (None, None)
            rows.append(row)
        return Table(columns, rows)

    def printed(self, form: str) -> str:
        """The table as `md` or `tex` for readers, as `csv` or `json` for machines."""
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


# Figures ---------------------------------------------------------------------------------------------------------


def accuracy(result: Result, settings: RunSettings) -> float | None:
    """At the last step, or at the last evaluation of an unfinished run."""
    measured = measure(result, settings)
    return measured[0] if measured else None


def median(result: Result, settings: RunSettings) -> float | None:
    """Of the last evaluations."""
    middle = last_median(result, settings)
    return middle.value if middle else None


def at_step(step: int) -> Reader:
    """Reads the accuracy after so many steps, if it was measured then."""

    def read(result: Result, settings: RunSettings) -> float | None:
        network = f"accuracy_{settings.train.evaluated}"
        return next((point[network] for point in result.curve if point["step"] == step), None)

    return read


def of_class(name: str) -> Reader:
    """Reads the accuracy of a class."""
    return lambda result, _: class_accuracies(result).get(name)


def class_accuracies(result: Result) -> Mapping[str, float]:
    """Accuracy of each class; none of an unfinished run."""
    return result.result.get("class_accuracy", {}) if result.result else {}


def of_pseudo(name: str) -> Reader:
    """Reads a value of the pseudo labels at the last evaluation, in percent."""

    def read(result: Result, _: RunSettings) -> float | None:
        value = result.curve[-1].get(f"pseudo_{name}") if result.curve else None
        return None if value is None else 100 * value

    return read
