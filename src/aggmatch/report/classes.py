"""Classes in figures: their names, pairs that are easily confused, and bars of class distributions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from aggmatch.data.images import UNKNOWN
from aggmatch.report.figure import MANY, short
from aggmatch.report.style import ACCENT, FOREGROUND, NEUTRAL, RIGHT, WRONG

CONFUSED_PAIRS = (("cat", "dog"), ("deer", "horse"), ("airplane", "bird"), ("automobile", "truck"))
"""Classes that the paper names as often confused."""
BARS = 10
"""Most classes in a bar chart: of more, those with the largest probabilities."""


def pairs_among(classes: Sequence[str]) -> list[tuple[int, int]]:
    """Numbers of both classes of each confused pair that the data set has."""
    return [
        (classes.index(first), classes.index(second))
        for first, second in CONFUSED_PAIRS
        if first in classes and second in classes
    ]


def name_classes(axes: Axes, classes: Sequence[str]) -> None:
    """Write the names of the classes along two sides of a heat map, unless there are many."""
    names = [short(name) for name in classes] if len(classes) <= MANY else []
    long = max(map(len, classes)) > 2
    turned: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if long else {}
    axes.set_xticks(range(len(names)), names, **turned)
    axes.set_yticks(range(len(names)), names)


def shown_classes(distributions: Sequence[NDArray[np.float32]], truth: int) -> list[int]:
    """Classes to draw bars for: all if they are few, else those with the largest probabilities and the true one."""
    largest = np.maximum.reduce(list(distributions))
    ranked = sorted(range(len(largest)), key=lambda number: (number != truth, -largest[number]))
    return sorted(ranked[:BARS])


def draw_distributions(
    row: Sequence[Axes], distributions: Sequence[NDArray[np.float32]], truth: int, classes: Sequence[str]
) -> None:
    """Draw class distributions as bar charts that share their rows; names are left of the first chart.

    The true class is green and has a dotted line, a wrong favourite is red.
    """
    shown = shown_classes(distributions, truth)
    for axes, probs in zip(row, distributions, strict=True):
        favorite = {int(probs.argmax()): ACCENT if truth == UNKNOWN else WRONG}
        colors = [RIGHT if number == truth else favorite.get(number, NEUTRAL) for number in shown]
        axes.barh(range(len(shown)), probs[shown], color=colors)
        names = [short(classes[number]) for number in shown] if axes is row[0] else []
        axes.set_yticks(range(len(names)), names, size=7)
        axes.set(xlim=(0, 1), xticks=[], ylim=(len(shown) - 0.5, -0.5))
        if truth != UNKNOWN:
            axes.axhline(shown.index(truth), color=FOREGROUND, linewidth=0.6, alpha=0.5, linestyle=(0, (1, 2)))
        axes.tick_params(length=0)
        axes.grid(visible=False)
