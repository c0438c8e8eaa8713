"""The registry of figures: those of the modules here, of a file of your own, or of an installed package.

A module announces one figure as `FIGURE`, under the name of the module, or several as `FIGURES`, name → `Figure`. The
first line of the docstring of a figure's function describes it. The report, `aggmatch figures` and the documentation
read this registry, so a new figure is one new file and nothing else.
"""

import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from aggmatch.errors import AggMatchError, unknown
from aggmatch.registry import Registry, is_code
from aggmatch.report.figure import Panel
from aggmatch.runs.stored import StoredRun


@dataclass(frozen=True)
class Chapter:
    """A part of the report: figures that answer one question."""

    title: str
    lead: str
    """How to read its figures."""


CHAPTERS: Mapping[str, Chapter] = {
    "training": Chapter(
        "What happened during training",
        "Test accuracy is the result. The other curves show how the run got there: healthy pseudo labels gain coverage "
        "without losing precision.",
    ),
    "predictions": Chapter(
        "What it gets right, and how sure it is",
        "Overall accuracy hides weak classes. A confidence is useful only if sure predictions are right more often "
        "than unsure ones.",
    ),
    "pseudo-labels": Chapter(
        "Pseudo labels up close",
        "Unlabelled images with the pseudo labels of the method. Training never sees the truth; where it is known, "
        "they are compared with it.",
    ),
    "attention": Chapter(
        "Where aggregation looks",
        "Similar images in the queue refine a pseudo label. Within a batch, the features of all methods can be "
        "compared. The more a class attends to itself, the better.",
    ),
    "features": Chapter(
        "How classes separate",
        "Images that look alike to the network are close together. Mixed groups are classes that it confuses.",
    ),
}
"""The chapters of the report in reading order."""
ALIASES = {"curves": ("accuracy", "losses", "pseudo_labels", "queue"), "labels": ("refinement", "mistakes")}
"""Old names of groups of figures that are not names of chapters."""


@dataclass(frozen=True)
class Figure:
    """One type of figure, drawn from runs.

    Example: `Figure(draw, chapter="training", needs="its log", quick=True)`.
    """

    draw: Callable[[Sequence[StoredRun]], Iterator[Panel]]
    """Yields the panels that the runs have the files for. It may raise an `AggMatchError` for what it cannot draw,
    after it has yielded everything it can; `aggmatch.report.figure.each` does that."""
    chapter: str
    """Chapter of the report: a key of `CHAPTERS`."""
    needs: str
    """What a run must have kept, in words, for the documentation: `its log`, `snapshots`, ..."""
    order: int = 100
    """Place within the chapter; equal ones go by name."""
    quick: bool = False
    """Whether it needs no network to be run, so that it is drawn while runs are still training."""

    def __post_init__(self) -> None:
        if self.chapter not in CHAPTERS:
            raise unknown("chapter", self.chapter, CHAPTERS)


@cache
def builtin_figures() -> dict[str, "Figure"]:
    """The figures of this package by name."""
    found: dict[str, Figure] = {}
    for name in (module.name for module in pkgutil.iter_modules(__path__)):
        module = import_module(f"{__name__}.{name}")
        found |= module.FIGURES if hasattr(module, "FIGURES") else {name: module.FIGURE}
    return found


FIGURES: Registry[Figure] = Registry(
    "figure",
    "figures",
    builtin=builtin_figures,
    accepts=lambda part: isinstance(part, Figure),
    wanted="an aggmatch.report.figures.Figure",
)
"""Every figure that can be named."""


def describe(name: str) -> str:
    """What a figure shows, in one line: the first line of the docstring of its function, or else of its module."""
    draw = FIGURES.load(name).draw
    return (draw.__doc__ or getattr(inspect.getmodule(draw), "__doc__", None) or "").strip().split("\n")[0]


def select(names: Iterable[str] | None = None) -> dict[str, Figure]:
    """Return the figures that the names select, in the order of chapter, `order` and name.

    names: figures, chapters, or former names of several figures (`curves`, `labels`); None for all figures that need no
    path. Raises an `AggMatchError` for an unknown name.
    """
    known = FIGURES.names()
    chosen: dict[str, Figure] = {}
    for name in known if names is None else names:
        if name in ALIASES:
            chosen |= {each: FIGURES.load(each) for each in ALIASES[name]}
        elif name in CHAPTERS and name not in FIGURES:
            chosen |= {each: figure for each in known if (figure := FIGURES.load(each)).chapter == name}
        elif name in FIGURES or is_code(name):
            chosen[name] = FIGURES.load(name)
        else:
            raise unknown("figure", name, {*known, *CHAPTERS, *ALIASES}, see="aggmatch list figures")
    chapters = list(CHAPTERS)
    places = {name: (chapters.index(each.chapter), each.order, name) for name, each in chosen.items()}
    return {name: chosen[name] for name in sorted(chosen, key=places.__getitem__)}


def draw(
    runs: Sequence[StoredRun], names: Iterable[str] | None = None, *, missing: Callable[[str, str], None] | None = None
) -> Iterator[tuple[str, Panel]]:
    """Yield the panels of figures, each with the name of its figure and computed when it is asked for.

    names: see `select`. missing: called with figure and reason for what cannot be drawn; without it that is an error.

    Example: `for name, panel in draw(read_runs([Path("runs/mine")]), ["accuracy"]): print(panel.caption)`.
    """
    for name, figure in select(names).items():
        try:
            for panel in figure.draw(runs):
                yield name, panel
        except AggMatchError as error:
            if missing is None:
                raise
            missing(name, str(error))
