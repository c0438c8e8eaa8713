"""Whether more labels are worth it: one sentence from the estimates so far."""

import math
import statistics
from collections.abc import Sequence

from aggmatch.page.result import Estimate

RECENT = 4
"""Estimates that the trend is read from."""
SMALL_GAIN = 1.0
"""Points that are not worth twice as many labels."""


def advice(history: Sequence[Estimate]) -> str:
    """Return a sentence on whether more labels are worth it.

    history: estimates in the order in which they were made. The trend is a straight line over the logarithm of the
    number of labels; it says what twice as many would bring.

    Example: `advice([])` says that there is no estimate yet.
    """
    if not history:
        return "No estimate yet: label at least two images of each of two classes, then train."
    last = history[-1]
    half = (last.high - last.low) / 2
    known = {each.labels: each for each in history}  # the newest of equals
    recent = [known[labels] for labels in sorted(known)][-RECENT:]
    if len(recent) < 2:
        return (
            f"One estimate does not say what more labels bring; it is uncertain by ±{half:.0f} points. Label "
            f"{more(last.labels)} more images and train again."
        )
    slope, _ = statistics.linear_regression(
        [math.log2(each.labels) for each in recent], [each.accuracy for each in recent]
    )
    gain = min(slope, 100 - last.accuracy)
    if gain < SMALL_GAIN:
        return (
            f"More labels change little now: the last {len(recent)} estimates rise by less than {SMALL_GAIN:.0f} point "
            f"for twice as many labels. Look at the review instead."
        )
    sure = "" if gain > half else f" The estimate itself is uncertain by ±{half:.0f} points, so this is a rough guess."
    return f"More labels are worth it: {2 * last.labels} labels would add about {gain:.0f} points.{sure}"


def more(labels: int) -> int:
    """Return how many labels to add next: half as many again, a round number."""
    return max(10, round(labels / 20) * 10)
