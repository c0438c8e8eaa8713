"""Results files: one line of JSON per run, which remains when the run folder is deleted; tables are made from it.

A line holds the configuration that decides the result, the curve, the result, the hardware, and how far the run went.
Two lines with the same configuration are the same run, even if one was written before a setting existed. A run on all
labels of a data set, such as a folder of images, is the same run only with the same labels and images.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

from aggmatch.config import Layer
from aggmatch.errors import AggMatchError
from aggmatch.registry import refuse_code
from aggmatch.runs.stored import Given, StoredRun
from aggmatch.settings import parts_named, resolve
from aggmatch.storage.files import write_output
from aggmatch.validate import Natural, NonNegative, Percent, parse_json

CONFIGURED = ("data", "labels", "fold", "seed", "method", "recipe", "steps", "network")
ELSEWHERE = (*CONFIGURED, "hardware", "versions", "metrics_digest")
"""Entries of a summary that a line holds in its configuration or next to its result."""


class Outcome(TypedDict):
    """What a line must contain about a finished run's result; older lines have no accuracy by class."""

    accuracy: Percent | None
    class_accuracy: NotRequired[dict[str, Percent]]
    pseudo_precision: NotRequired[float]
    pseudo_coverage: NotRequired[float]
    seconds: NotRequired[NonNegative]


class Point(TypedDict):
    """What an evaluation in a line must contain."""

    step: Natural
    accuracy_average: Percent
    accuracy_online: Percent
    pseudo_precision: NotRequired[float]
    pseudo_recall: NotRequired[float]
    pseudo_coverage: NotRequired[float]
    seconds: NotRequired[NonNegative]


class Content(TypedDict):
    """A run as a line holds it."""

    configuration: dict[str, Any]
    steps: Natural
    finished: bool
    result: Outcome | None
    curve: list[Point]
    hardware: str | None
    versions: dict[str, str] | None
    given: NotRequired[Given]


class Line(NamedTuple):
    """A line of a results file."""

    text: str
    key: str | None
    """The configuration as a text, equal exactly for the same run; None for older lines, which have none."""
    run: StoredRun | None
    """None if this version cannot run its configuration, or if it names code that is not allowed."""
    problem: str = ""
    """Why there is no run."""


def encode(run: StoredRun) -> str:
    """A run as a line of JSON."""
    result = {name: value for name, value in run.summary.items() if name not in ELSEWHERE} if run.summary else None
    content: dict[str, Any] = {
        "configuration": run.settings.identity(),
        "steps": run.steps,
        "finished": run.finished,
        "result": result,
        "curve": run.curve,
        "hardware": run.hardware,
        "versions": run.versions,
    }
    if run.given:
        content["given"] = run.given
    return json.dumps(content, ensure_ascii=False)


def decode(text: str, where: str, allow: Iterable[str] = ()) -> Line:
    """Read a line; error messages start with `where`, such as the file and the number of the line."""
    values = parse_json(text, Any, where)
    if not isinstance(values, dict) or not isinstance(values.get("configuration"), dict):
        return Line(text, None, None, "The line has no configuration.")
    content = parse_json(text, Content, where)
    configuration = content["configuration"]
    try:
        refuse_code(parts_named(configuration), allow, "The configuration")
        settings = resolve([Layer("a stored result", configuration)], recipes=False)
    except AggMatchError as error:
        return Line(text, json.dumps(configuration, sort_keys=True), None, error.with_options)
    run = StoredRun(
        settings=settings,
        records=content["curve"],
        summary=content["result"],
        steps=content["steps"],
        hardware=content["hardware"],
        versions=content["versions"],
        stored_given=content.get("given"),
    )
    return Line(text, run.key, run)


def read_results(path: Path, allow: Iterable[str] = ()) -> list[Line]:
    """The lines of a results file that are not blank."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise AggMatchError(f"Cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise AggMatchError(f"Cannot read {path}: {error}.") from None
    allowed = list(allow)
    numbered = enumerate(text.split("\n"), 1)
    return [decode(line, f"{path}, line {number}", allowed) for number, line in numbered if line.strip()]


def add_results(path: Path, runs: Sequence[StoredRun], allow: Iterable[str] = ()) -> int:
    """Append runs to a results file and return how many lines of the same runs they replaced; other lines stay."""
    new = {run.key: encode(run) for run in runs}
    before = read_results(path, allow) if path.exists() else []
    kept = [line.text for line in before if line.key not in new]
    text = "\n".join([*kept, *new.values()]) + "\n"
    write_output(path, text.encode(errors="backslashreplace"))  # which is how JSON writes what UTF-8 cannot
    return len(before) - len(kept)
