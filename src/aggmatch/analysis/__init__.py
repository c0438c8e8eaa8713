"""Figures and analyses of finished or running runs, computed from their folders and never from a live trainer.

Every analysis is a module with `panels(runs)`, which yields the figures that the given runs can support.
"""

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from aggmatch.errors import unknown

if TYPE_CHECKING:
    from aggmatch.analysis.panel import Panel
    from aggmatch.analysis.runs import RunRecord

ANALYSES = ("curves", "predictions", "labels", "attention", "embedding", "explain")
"""Names of the modules with analyses, in the order in which they are told."""


def panels(runs: "Sequence[RunRecord]", only: Iterable[str] = ANALYSES) -> "Iterator[Panel]":
    """The panels of the named analyses, each computed when it is asked for."""
    wanted = list(only)
    for name in wanted:
        if name not in ANALYSES:
            raise unknown("analysis", name, ANALYSES)
    for name in ANALYSES:
        if name in wanted:
            yield from import_module(f"{__name__}.{name}").panels(runs)
