"""What a run says of itself: where it trains and, when it is finished, its summary."""

from typing import NotRequired, TypedDict

from aggmatch.config import Count, Natural, NonNegative
from aggmatch.validate import Percent

LAST_EVALUATIONS = 20
"""Evaluations, from the last one back, whose median stands beside the accuracy."""


class Session(TypedDict):
    """Where a process trained: a line of `sessions.jsonl`."""

    step: Natural
    started: str
    hardware: str
    versions: dict[str, str]


class Summary(TypedDict):
    """What every summary holds; of pseudo labels only where the method makes some."""

    data: str
    labels: Count
    fold: Natural
    method: str
    steps: Natural
    network: str
    accuracy: Percent
    accuracy_median_of_last_20: Percent
    accuracy_average: Percent
    accuracy_online: Percent
    class_accuracy: dict[str, Percent]
    pseudo_precision: NotRequired[float]
    pseudo_coverage: NotRequired[float]
    seconds: NonNegative
    hardware: str
    versions: dict[str, str]
    finished: str
