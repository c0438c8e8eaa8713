"""The configuration of runs as a reader wants it: what is unlike the recipe, what differs, and how to repeat a run."""

import json
import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from aggmatch.config import flatten, parse_value
from aggmatch.runs.stored import RunRecord, recipe_of

OPTIONS = {"train.steps": "--steps", "data.split": "--split"}
"""Settings that have an option of `aggmatch train` beside those that the command always names."""
NAMED = {"data.labels": "--labels", "data.fold": "--fold"}
"""Settings that the command names with these options, for the reader's sake, unless a given split decides them."""


class Row(NamedTuple):
    """A setting, its value in each run, and whether a run departs from its recipe there."""

    key: str
    values: list[str]
    departs: bool
    usual: str = ""
    """The recipe's value."""


def departures(run: RunRecord) -> dict[str, Any]:
    """Dotted settings that decide the result and are not the recipe's."""
    usual = flatten(recipe_of(run).identity())
    return {key: value for key, value in flatten(run.settings.identity()).items() if value != usual[key]}


def setting_rows(run: RunRecord) -> list[Row]:
    """Every setting of a run beside its recipe's."""
    usual, own = flatten(recipe_of(run).to_dict()), departures(run)
    return [
        Row(key, [show(value)], key in own, show(usual[key]))
        for key, value in flatten(run.settings.to_dict()).items()
        if key != "method.name"
    ]


def difference_rows(runs: Sequence[RunRecord]) -> list[Row]:
    """Settings in which runs differ; a dash where a method has no such setting."""
    flat = [flatten(run.settings.identity()) for run in runs]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    own = {key for run in runs for key in departures(run)}
    rows = [Row(key, [show(each[key]) if key in each else "–" for each in flat], key in own) for key in keys]
    return [row for row in rows if len(set(row.values)) > 1]


def command(run: RunRecord) -> str:
    """The command that repeats a run: what departs from the recipe is said, the rest is the recipe."""
    data, changed = run.settings.data, departures(run)
    words = ["aggmatch", "train", data.name, "--method", run.method]
    for key, option in NAMED.items():
        value = getattr(data, key.removeprefix("data."))
        if value is not None or data.split is not None:  # no option stands for all labels
            changed.pop(key, None)
            words += [option, str(value)] if data.split is None else []
    for key, value in changed.items():
        if key in OPTIONS:
            words += [OPTIONS[key], str(value)]
        else:
            words += ["--set", f"{key}={assignable(value)}"]
    return shlex.join(words)


def assignable(value: Any) -> str:
    """A value as `--set` reads it back."""
    if value is None:
        return "none"
    if isinstance(value, str) and parse_value(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def show(value: Any) -> str:
    """A value as a person reads it."""
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(show, value)) if isinstance(value, list) else str(value)
