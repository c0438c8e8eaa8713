"""How runs are told apart in figures: a colour a method, a shade and a line a variant of it, a mark each of all."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.colors import to_hex, to_rgb

from aggmatch.report.figure import LINES, method_color
from aggmatch.runs.stored import RunRecord, conditions, grouped

MARKS = "osD^vP<>"
"""Marks of kinds of runs."""
LUMINANCES = (0.29, 0.135, 0.2)
"""Of the shades of a colour: as far apart as light and dark pages, from which they have to stand off, allow."""


class Look(NamedTuple):
    """How a run is drawn."""

    color: str
    line: Any
    mark: str


def looks(runs: Sequence[RunRecord]) -> dict[RunRecord, Look]:
    """The look of each run; those of one kind, whatever the condition, share it.

    The first variant of a method has the method's own colour and a solid line.
    """
    found: dict[RunRecord, Look] = {}
    kinds: dict[str, Look] = {}
    variants: Counter[str] = Counter()
    for part in conditions(runs).values():
        for name, group in grouped(part).items():
            method = group[0].method
            if name not in kinds:
                colors, number = shades(method_color(method)), variants[method]
                mark = MARKS[len(kinds) % len(MARKS)]
                kinds[name] = Look(colors[number % len(colors)], LINES[number % len(LINES)], mark)
                variants[method] += 1
            found |= dict.fromkeys(group, kinds[name])
    return found


def shades(color: str) -> list[str]:
    """A colour and the two shades of it that differ most in luminance."""
    own = luminance(color)
    others = sorted(LUMINANCES, key=lambda wanted: -abs(wanted - own))[:2]
    return [color, *(with_luminance(color, wanted) for wanted in others)]


def luminance(color: str) -> float:
    """Relative luminance, 0 of black to 1 of white, as in WCAG 2."""
    red, green, blue = map(linear, to_rgb(color))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def with_luminance(color: str, wanted: float) -> str:
    """The colour mixed with white or black so that it has a luminance."""
    own = luminance(color)
    target, share = (1.0, (wanted - own) / (1 - own)) if wanted > own else (0.0, 1 - wanted / own)
    red, green, blue = (encoded(value + share * (target - value)) for value in map(linear, to_rgb(color)))
    return to_hex((red, green, blue))


def linear(value: float) -> float:
    """A channel of sRGB in proportion to its light."""
    return value / 12.92 if value <= 0.04045 else float(((value + 0.055) / 1.055) ** 2.4)


def encoded(value: float) -> float:
    """The inverse of `linear`."""
    return 12.92 * value if value <= 0.0031308 else float(1.055 * value ** (1 / 2.4) - 0.055)
