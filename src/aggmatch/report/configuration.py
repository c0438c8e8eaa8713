"""The configuration of runs: what differs from the recipe, what differs between runs, and how to repeat a run."""

import json
import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from aggmatch.config import differences, flatten, parse_value
from aggmatch.runs.stats import recipe_of
from aggmatch.runs.stored import StoredRun

OPTIONS = {"train.steps": "--steps", "data.split": "--split"}
"""Settings that have an option of `aggmatch train` and are named only if they differ from the recipe."""
NAMED = {"data.labels": "--labels", "data.fold": "--fold"}
"""Settings that the command always names, unless a given split decides them."""


class Row(NamedTuple):
    """A setting, its value in each run, and whether a run departs from its recipe there."""

    key: str
    values: list[str]
    departs: bool
    usual: str = ""
    """The recipe's value."""


def changed_settings(run: StoredRun) -> dict[str, Any]:
    """Dotted settings that decide the result and differ from the recipe, with the run's values."""
    changes = differences(recipe_of(run.settings).identity(), run.settings.identity())
    return {key: own for key, (_, own) in changes.items()}


def setting_rows(run: StoredRun) -> list[Row]:
    """Every setting of a run beside the recipe's value."""
    usual, changed = flatten(recipe_of(run.settings).to_dict()), changed_settings(run)
    return [
        Row(key, [show(value)], key in changed, show(usual[key]))
        for key, value in flatten(run.settings.to_dict()).items()
        if key != "method.name"
    ]


def difference_rows(runs: Sequence[StoredRun]) -> list[Row]:
    """Settings in which runs differ; a dash if a method has no such setting."""
    flat = [flatten(run.settings.identity()) for run in runs]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    changed = {key for run in runs for key in changed_settings(run)}
    rows = [Row(key, [show(each[key]) if key in each else "–" for each in flat], key in changed) for key in keys]
    return [row for row in rows if len(set(row.values)) > 1]


def command(run: StoredRun) -> str:
    """The command that repeats a run: it names what differs from the recipe."""
    data, changed = run.settings.data, changed_settings(run)
    words = ["aggmatch", "train", data.name, "--method", run.settings.method_name]
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
