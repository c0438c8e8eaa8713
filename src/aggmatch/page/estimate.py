"""What the label page says about the accuracy: how good the model is, and whether more labels are worth it."""

from typing import NamedTuple

SMALL_GAIN = 1.0
"""Points that are not worth twice as many labels."""


class Estimate(NamedTuple):
    """How accurate a model is on images that it had not seen, in percent."""

    labels: int
    """Labels that the model learned from."""
    accuracy: float
    low: float
    high: float
    """95 % interval."""
    tested: int = 0
    """Test images on which it was measured; 0 if it was estimated from the labels."""
    gain: float | None = None
    """Points that the last doubling of the labels added, by a simple classifier; None if there are too few labels."""


def advice(estimate: Estimate | None) -> str:
    """Return a sentence that says whether more labels are worth it.

    It uses the gain from the second half of the labels, not earlier estimates: their intervals are too wide.

    Example: `advice(None)` says that there is no estimate yet.
    """
    if estimate is None:
        return "No estimate yet: it needs pretrained features, and a model that learned from at least five labels."
    half = (estimate.high - estimate.low) / 2
    if estimate.gain is None:
        return (
            f"There are too few labels to say what more would bring; the estimate is uncertain by ±{half:.0f} points. "
            f"Label {more(estimate.labels)} more images."
        )
    gain = min(estimate.gain, 100 - estimate.accuracy)
    if gain < SMALL_GAIN:
        return (
            f"More labels change little now: {2 * estimate.labels} labels would add less than {SMALL_GAIN:.0f} point. "
            f"Look at the review instead."
        )
    sure = "" if gain > half else f" The estimate itself is uncertain by ±{half:.0f} points, so this is a rough guess."
    return f"More labels are worth it: {2 * estimate.labels} labels would add up to {gain:.0f} points.{sure}"


def more(labels: int) -> int:
    """Return how many labels to add next: half as many again, a round number."""
    return max(10, round(labels / 20) * 10)
