"""Label noise: an exact share of wrong labels in each class, fixed by a seed."""

from collections.abc import Mapping, Sequence
from decimal import ROUND_FLOOR, Decimal

import numpy as np
from numpy.typing import NDArray

from aggmatch.data.randomness import Use, bits, shuffled
from aggmatch.errors import unknown
from aggmatch.validate import InvalidValue


def asymmetric(labels: NDArray[np.int64], mapping: Mapping[int, int], rate: float, seed: int) -> NDArray[np.int64]:
    """Replace the share `rate` of the labels of each mapped class by the class it maps to; other classes stay clean."""
    noisy = labels.copy()
    for original, mistaken in mapping.items():
        noisy[_chosen(labels, original, rate, bits(seed, Use.NOISE, original))] = mistaken
    return noisy


def symmetric(labels: NDArray[np.int64], classes: int, rate: float, seed: int) -> NDArray[np.int64]:
    """Replace the share `rate` of the labels of each class by any other class, all equally likely."""
    noisy = labels.copy()
    for original in range(classes):
        source = bits(seed, Use.NOISE, original)
        chosen = _chosen(labels, original, rate, source)
        steps = np.asarray(source.random_raw(len(chosen)), dtype=np.uint64) % np.uint64(max(classes - 1, 1))
        noisy[chosen] = (original + 1 + steps.astype(np.int64)) % classes
    return noisy


def _chosen(labels: NDArray[np.int64], original: int, rate: float, source: np.random.PCG64) -> NDArray[np.int64]:
    """Return the positions of `flips(rate, n)` labels of one class."""
    members = np.flatnonzero(labels == original)
    return shuffled(members, source)[: flips(rate, len(members))]


def flips(rate: float, count: int) -> int:
    """Return rate · count, rounded down, so that the flipped share never exceeds the rate.

    Computed in decimals: as a float, 0.29 · 100 is 28.999….
    """
    return int((Decimal(repr(rate)) * count).to_integral_value(ROUND_FLOOR))


def parse_map(items: Sequence[str]) -> dict[str, str]:
    """Parse `("cat>dog", "dog>cat")` into {"cat": "dog", "dog": "cat"}."""
    mapping: dict[str, str] = {}
    for item in items:
        original, arrow, mistaken = (text.strip() for text in item.partition(">"))
        if not (original and arrow and mistaken) or original == mistaken:
            raise InvalidValue("noise_map", f"must hold items such as 'cat>dog', two different classes, got '{item}'")
        if original in mapping:
            raise InvalidValue("noise_map", f"must name each left class once, got '{original}' again in '{item}'")
        mapping[original] = mistaken
    return mapping


def class_numbers(mapping: Mapping[str, str], classes: Sequence[str]) -> dict[int, int]:
    """Convert a map of class names into a map of class numbers."""
    numbers = {name: number for number, name in enumerate(classes)}
    for name in (*mapping, *mapping.values()):
        if name not in numbers:
            raise unknown("class in data.noise_map", name, numbers)
    return {numbers[original]: numbers[mistaken] for original, mistaken in mapping.items()}
