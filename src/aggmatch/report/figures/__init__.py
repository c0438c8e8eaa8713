"""The registry of figures: one module here per figure, a file of your own, or an installed package.

A module announces its figure as `FIGURE`. The report, `aggmatch figures` and the documentation read this registry, so a
new figure is one new file.
"""

import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from aggmatch.registry import Registry
from aggmatch.report.figure import Panel
from aggmatch.runs.stored import StoredRun


@dataclass(frozen=True)
class Figure:
    """A kind of figure that runs can be drawn as."""

    draw: Callable[[Sequence[StoredRun]], Iterator[Panel]]
    """Yields the panels that the runs have the files for. It may raise an `AggMatchError` for what it cannot draw, after
    it has yielded everything it can."""
    chapter: str
    """Chapter of the report: a key of `CHAPTERS`."""
    needs: str
    """What a run must have kept, in words, for the documentation: `its log`, `snapshots`, ..."""
    order: int = 100
    """Place within the chapter; equal ones go by name."""
    quick: bool = False
    """Whether it needs no network to be run, so that it is drawn while runs are still training."""


@cache
def builtin_figures() -> dict[str, str]:
    """The figures of this package, by module name."""
    return {module.name: f"{__name__}.{module.name}:FIGURE" for module in pkgutil.iter_modules(__path__)}


FIGURES: Registry[Figure] = Registry(
    "figure",
    "figures",
    builtin=builtin_figures,
    accepts=lambda part: isinstance(part, Figure),
    wanted="an aggmatch.report.figures.Figure",
)
"""Every figure that can be named."""
