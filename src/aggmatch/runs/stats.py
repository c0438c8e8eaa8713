"""What a stored result says: its accuracy and after how many steps, its median, and how its settings depart."""

import json
import statistics
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from aggmatch.config import differences
from aggmatch.runs.results import Result
from aggmatch.runs.summary import LAST_EVALUATIONS
from aggmatch.settings import RunSettings
from aggmatch.tables import plural

CADENCE = ("steps", "log_every", "evaluate_every")
"""Settings of section `train` in which runs of one figure may differ: how long and how often."""


class Length(NamedTuple):
    """How far runs went; by this order the better founded figure comes last."""

    finished: bool
    steps: int
    """Steps after which the accuracy was measured."""
    schedule: int
    """Steps that the run was planned to have."""

    @property
    def text(self) -> str:
        """The steps that were done, and of how many where some are left."""
        return f"{self.steps:,}" if self.finished else f"{self.steps:,} of {self.schedule:,}"


class Median(NamedTuple):
    """The median of a run's last evaluations, and how many these were."""

    value: float
    evaluations: int


def measure(result: Result, settings: RunSettings, of_class: str | None = None) -> tuple[float, Length] | None:
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


def last_median(result: Result, settings: RunSettings) -> Median | None:
    """Median of the last evaluations, of all where there are fewer; none without any."""
    values = [point[f"accuracy_{settings.train.evaluated}"] for point in result.curve[-LAST_EVALUATIONS:]]
    return Median(statistics.median(values), len(values)) if values else None


def describe_counts(medians: Iterable[Median]) -> str:
    """How many evaluations medians are of: `20 evaluations`, or `5 to 20 evaluations` where runs differ."""
    counts = [median.evaluations for median in medians]
    least, most = min(counts), max(counts)
    return plural(most, "evaluation") if least == most else f"{least} to {most} evaluations"


# Settings --------------------------------------------------------------------------------------------------------


def likeness(settings: RunSettings) -> str:
    """What runs of one figure and fold have in common, as a text."""
    return json.dumps(without_cadence(settings), sort_keys=True)


def without_cadence(settings: RunSettings) -> dict[str, Any]:
    """What decides the result of a run except how long it was."""
    identity = settings.identity()
    identity["train"] = {name: value for name, value in identity["train"].items() if name not in CADENCE}
    return identity


def departures(planned: RunSettings, settings: RunSettings) -> dict[str, tuple[Any, Any]]:
    """Dotted keys of what a run does otherwise than planned → (planned, done); its fold and its length aside."""
    changes = differences(without_cadence(planned), without_cadence(settings))
    return {key: pair for key, pair in changes.items() if key != "data.fold"}


def describe_departures(changes: Mapping[str, tuple[Any, Any]]) -> str:
    """`optim.lr is 0.5, not 0.03; ...`."""
    return "; ".join(f"{key} is {done!r}, not {planned!r}" for key, (planned, done) in changes.items())
