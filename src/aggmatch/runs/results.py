"""Runs as data: one line of JSON a run, to be kept when its folder is gone and made into tables later.

A line holds the part of the configuration that decides the result, the curve, the result, what it ran on, and how far
it went. Two lines with one configuration are the same run, also where one is older than a setting that the other has.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from aggmatch.config import Layer, Natural
from aggmatch.errors import AggMatchError
from aggmatch.files import write_atomically
from aggmatch.runs.folder import RunFolder
from aggmatch.settings import RunSettings, resolve
from aggmatch.validate import Percent, require

EVALUATED = ("accuracy_average", "accuracy_online")
PSEUDO = ("pseudo_precision", "pseudo_recall", "pseudo_coverage")
ELSEWHERE = ("data", "labels", "fold", "seed", "method", "steps", "network", "hardware", "versions")
"""What a summary repeats from the configuration, or the line holds beside the result."""


@dataclass(frozen=True)
class Result:
    """What is known of one run. An unfinished one has a curve, but no result yet."""

    configuration: Mapping[str, Any]
    steps: int
    """Steps that the run had logged or finished."""
    finished: bool
    result: Mapping[str, Any] | None
    """Accuracies at the last step, in all and by class, and what else the summary says of the run."""
    curve: Sequence[Mapping[str, Any]]
    """Each evaluation of both networks, with the pseudo-label values of the log step nearest to it."""
    hardware: str | None
    """What the last part of the run was trained on; None where the folder does not say."""
    versions: Mapping[str, str] | None

    @cached_property
    def settings(self) -> RunSettings | None:
        """The configuration, settings newer than it at their defaults; none if this version cannot run it."""
        try:
            return resolve([Layer("a stored result", self.configuration)])
        except AggMatchError:
            return None

    @cached_property
    def key(self) -> str:
        """The configuration as a text: equal exactly for the same run."""
        return json.dumps(self.settings.identity() if self.settings else self.configuration, sort_keys=True)

    @property
    def standing(self) -> tuple[bool, int, int]:
        """How well founded it is: of two results of one run, the last in this order is to be believed."""
        return self.finished, self.steps, len(self.curve)

    def line(self) -> str:
        """The run as a line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)


def result_of(path: Path) -> Result:
    """The result of a run from its folder, finished or not."""
    folder = RunFolder(path)
    settings = folder.settings()
    records, summary = folder.records(), folder.result()
    place = summary or folder.last_session() or {}
    return Result(
        configuration=settings.identity(),
        steps=summary["steps"] if summary else max((record["step"] for record in records), default=0),
        finished=summary is not None,
        result={name: value for name, value in summary.items() if name not in ELSEWHERE} if summary else None,
        curve=curve(records),
        hardware=place.get("hardware"),
        versions=place.get("versions"),
    )


def curve(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Evaluations among the records of a log, each with the values of the log step nearest to it."""
    logged = [record for record in records if PSEUDO[-1] in record]
    points = []
    for record in records:
        if all(name in record for name in EVALUATED):
            source = record if PSEUDO[-1] in record else nearest(logged, record["step"])
            values = {name: record[name] for name in EVALUATED} | {name: source.get(name) for name in PSEUDO}
            rounded = {name: round(value, 4) for name, value in values.items() if value is not None}
            points.append({"step": record["step"], **rounded})
    return points


def nearest(records: Sequence[Mapping[str, Any]], step: int) -> Mapping[str, Any]:
    """The record whose step is nearest to `step`, empty where there is none."""
    return min(records, key=lambda record: abs(record["step"] - step), default={})


def find_runs(places: Iterable[Path]) -> list[Path]:
    """Folders of runs among the places: each is one, or has some below it."""
    found: list[Path] = []
    for place in places:
        below = [place] if RunFolder(place).holds_run else sorted(path.parent for path in place.glob("**/config.json"))
        if not below:
            raise AggMatchError(f"{place} holds no run: there is no config.json in it or below it.")
        found += below
    return list(dict.fromkeys(found))


# Files of lines --------------------------------------------------------------------------------------------------


class Outcome(TypedDict):
    """What a line must hold of a finished run's result; older ones lack classes."""

    accuracy: Percent
    class_accuracy: NotRequired[dict[str, Percent]]


class Point(TypedDict):
    """What an evaluation in a line must hold."""

    step: Natural
    accuracy_average: Percent
    accuracy_online: Percent


class Line(TypedDict):
    """A run in a file of results, entries as in `Result`."""

    configuration: dict[str, Any]
    steps: Natural
    finished: bool
    result: Outcome | None
    curve: list[Point]
    hardware: str | None
    versions: dict[str, str] | None


@dataclass(frozen=True)
class Stored:
    """Content of a file of results."""

    results: Sequence[Result]
    others: int
    """Lines without a configuration, which older files hold: no run can be told from them."""


def read_results(path: Path) -> Stored:
    """Read a file of results."""
    parsed = [parse(line, path, number) for number, line in lines(path)]
    results = [result for result in parsed if result is not None]
    return Stored(results, len(parsed) - len(results))


def add_results(path: Path, results: Sequence[Result]) -> int:
    """Append runs to a file, in place of its lines of the same runs; returns how many were there before.

    All other lines stay as they are, those without a configuration included. A line that is not JSON is an error.
    """
    new = {result.key: result.line() for result in results}
    kept, replaced = [], 0
    for number, line in lines(path) if path.exists() else []:
        before = parse(line, path, number)
        if before is not None and before.key in new:
            replaced += 1
        else:
            kept.append(line)
    write_atomically(path, ("\n".join([*kept, *new.values()]) + "\n").encode())
    return replaced


def lines(path: Path) -> list[tuple[int, str]]:
    """Lines of a file that are not blank, with their numbers."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise AggMatchError(f"Cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise AggMatchError(f"Cannot read {path}: {error}.") from None
    return [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def parse(line: str, path: Path, number: int) -> Result | None:
    """The run that a line describes; none for a line without a configuration."""
    where = f"{path}, line {number}"
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        raise AggMatchError(f"Cannot read {where}: it is not JSON.") from None
    if not isinstance(values, dict) or not isinstance(values.get("configuration"), dict):
        return None
    require(values, Line, where)
    return Result(**{name: values[name] for name in Line.__annotations__})
