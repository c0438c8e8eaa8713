"""Figures and analyses of finished or running runs, computed from their folders and never from a live trainer.

Every analysis is a module with `panels(runs)`, which yields the figures that the given runs can support and then raises
an AggMatchError if some that they should support cannot be drawn.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from aggmatch.errors import AggMatchError, unknown

if TYPE_CHECKING:
    from aggmatch.report.figure import Panel
    from aggmatch.runs.stored import RunRecord

ANALYSES = ("curves", "predictions", "labels", "attention", "embedding", "explain")
"""Names of the modules with analyses, in the order in which they are told."""


def panels(
    runs: "Sequence[RunRecord]",
    only: Iterable[str] = ANALYSES,
    *,
    missing: Callable[[str, str], None] | None = None,
) -> "Iterator[Panel]":
    """The panels of the named analyses, each computed when it is asked for.

    `missing` is told the analysis and the reason where something cannot be drawn; without it, that is an error.
    """
    wanted = list(only)
    for name in wanted:
        if name not in ANALYSES:
            raise unknown("analysis", name, ANALYSES)
    for name in ANALYSES:
        if name in wanted:
            try:
                yield from import_module(f"{__name__}.{name}").panels(runs)
            except AggMatchError as error:
                if missing is None:
                    raise
                missing(name, str(error))
