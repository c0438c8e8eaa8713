"""One self-contained page on one or several runs: what training did, how far to trust the result, how to repeat it.

The page is made of what the run folders hold. Parts that cannot be made (the data set is not at hand, the run is not
finished) are left out and named. It loads nothing from anywhere.
"""

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from time import monotonic
from types import ModuleType
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from aggmatch import __version__
from aggmatch.errors import AggMatchError
from aggmatch.report import attention, configuration, curves, doubts, embedding, labels, predictions
from aggmatch.report.figure import Panel
from aggmatch.report.pieces import Strip, cut
from aggmatch.report.pseudo_labels import has_queue
from aggmatch.report.style import looks
from aggmatch.report.summary import (
    Standing,
    accuracies,
    mean_and_spread,
    pairs,
    standing,
    verdict,
    verdict_of_several,
)
from aggmatch.report.test_results import (
    THRESHOLDS,
    Accepted,
    ClassResult,
    Paired,
    accepted,
    class_results,
    paired,
    tried,
)
from aggmatch.report.warnings import Concern, concerns, concerns_of_several
from aggmatch.runs.stored import RunRecord, Tell, conditions, first_folds, grouped, no_snapshots, silent
from aggmatch.tables import duration, plural

HALF = 400
"""Width in points below which figures may shrink a little so that two share a row."""


@dataclass(frozen=True)
class Chapter:
    """A part of the page: analyses that belong together, and how to read them."""

    anchor: str
    title: str
    lead: str
    analyses: tuple[ModuleType, ...]
    quick: bool = False
    """Whether it needs no network to be run, so that it is made while runs are watched."""


CHAPTERS = (
    Chapter(
        "training",
        "What happened during training",
        "Test accuracy is the result; the other curves say how it came about. Healthy pseudo labels gain coverage "
        "without losing precision.",
        (curves,),
        quick=True,
    ),
    Chapter(
        "predictions",
        "What it gets right, and how sure it is",
        "Overall accuracy hides weak classes. Confidence is worth something only where sure predictions are right more "
        "often than unsure ones.",
        (predictions,),
    ),
    Chapter(
        "pseudo-labels",
        "Pseudo labels up close",
        "Unlabelled images as the method labels them for itself, against the truth, which it never sees.",
        (labels, doubts),
    ),
    Chapter(
        "attention",
        "Where aggregation looks",
        "A pseudo label is refined by similar images in the queue. The more a class attends to itself, the better.",
        (attention,),
    ),
    Chapter(
        "features",
        "How classes come apart",
        "Images that the network takes for alike lie close together. Mixed groups are the classes it confuses.",
        (embedding,),
    ),
)


@dataclass(frozen=True)
class Illustration:
    """A figure as it stands in the page."""

    anchor: str
    title: str
    caption: str
    strips: list[Strip]

    @property
    def width(self) -> float:
        """Natural width in points."""
        return max(strip.width for strip in self.strips)

    @property
    def half(self) -> bool:
        """Whether two may share a row."""
        return self.width < HALF


@dataclass
class Told:
    """A chapter that was made."""

    chapter: Chapter
    illustrations: list[Illustration] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Why something is missing."""


@dataclass(frozen=True)
class Judged:
    """A finished run whose model was tried on the test images."""

    name: str
    classes: list[ClassResult]
    accepted: list[Accepted]


@dataclass
class Tables:
    """What is told in tables rather than figures."""

    judged: list[Judged] = field(default_factory=list)
    paired: list[Paired] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Why something is missing."""

    def by_confidence(self) -> list[tuple[float, list[Accepted | None]]]:
        """A row for each threshold: what every run accepts, None where it accepts nothing."""
        found = [{row.threshold: row for row in judged.accepted} for judged in self.judged]
        return [(threshold, [rows.get(threshold) for rows in found]) for threshold in THRESHOLDS]


def page(runs: Sequence[RunRecord], *, tell: Tell = silent, quick: bool = False, refresh: int | None = None) -> str:
    """The page as HTML. `quick` leaves out what needs networks to be run; `refresh` is the seconds to its reload."""
    tables = Tables() if quick else make_tables(runs, tell)
    chapters = [told for chapter in CHAPTERS if (told := tell_chapter(chapter, runs, tell, quick))]
    looked = looks(runs)
    views = [view(run, looked[run].color) for run in runs]
    environment = Environment(loader=PackageLoader("aggmatch.report"), autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.filters |= {
        "duration": duration,
        "plural": plural,
        "unbroken": unbroken,
        "whole_options": whole_options,
    }
    script = read_template(environment, "report.js")
    return environment.get_template("report.html").render(
        title=title(runs),
        verdict=verdict(runs[0]) if len(runs) == 1 else verdict_of_several(runs),
        runs=views,
        network=" and ".join(sorted({each.now.network for each in views})),
        finished=all(each.now.finished for each in views),
        groups=groups(runs),
        concerns=collect_concerns(runs),
        chapters=chapters,
        tables=tables,
        left_out=[] if quick else [words for run in first_folds(runs) for words in left_out(run)],
        class_tables=list(class_tables(runs)) if len(runs) > 1 else [],
        differences=configuration.difference_rows(first_folds(runs)),
        difference_names=[run.name for run in first_folds(runs)],
        quick=quick,
        refresh=refresh,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=__version__,
        style=Markup(read_template(environment, "report.css")),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def read_template(environment: Environment, name: str) -> str:
    """The text of a file beside the template, as it is."""
    assert environment.loader
    return environment.loader.get_source(environment, name)[0]


# Words and figures of the runs ------------------------------------------------------------------------------------


def title(runs: Sequence[RunRecord]) -> str:
    """What the page is about."""
    if len(runs) == 1:
        return f"{runs[0].method} on {runs[0].condition}"
    if len(conditions(runs)) == 1:
        return f"{len(runs)} runs on {runs[0].condition}"
    return f"{len(runs)} runs on {', '.join(dict.fromkeys(run.data_name for run in runs))}"


@dataclass(frozen=True)
class View:
    """A run as the template shows it."""

    name: str
    path: str
    method: str
    fold: int
    seed: int
    color: str
    now: Standing
    summary: dict[str, Any]
    departures: list[configuration.Row]
    settings: list[configuration.Row]
    command: str


def view(run: RunRecord, color: str) -> View:
    """Everything about one run that stands in tables and lists."""
    settings = configuration.setting_rows(run)
    return View(
        name=run.name,
        path=str(run.path),
        method=run.method,
        fold=run.fold,
        seed=run.settings.train.seed,
        color=color,
        now=standing(run),
        summary=run.summary or {},
        departures=[row for row in settings if row.departs],
        settings=settings,
        command=configuration.command(run),
    )


def groups(runs: Sequence[RunRecord]) -> list[tuple[str, str, str]]:
    """Kind, condition and mean ± deviation of runs that differ in nothing but fold and seed, where any do."""
    kinds = [
        (name, condition, accuracies(group))
        for condition, part in conditions(runs).items()
        for name, group in grouped(part).items()
    ]
    measured = [(name, condition, mean_and_spread(values)) for name, condition, values in kinds if values]
    return measured if any(len(values) > 1 for *_, values in kinds) else []


def collect_concerns(runs: Sequence[RunRecord]) -> list[tuple[Concern, list[str]]]:
    """What is off, with the names of the runs that share it; none for a single run or all together."""
    found: dict[Concern, list[str]] = {concern: [] for concern in concerns_of_several(runs)}
    for run in runs:
        for concern in concerns(run):
            found.setdefault(concern, []).append(run.name)
    return [(concern, names if len(runs) > 1 else []) for concern, names in found.items()]


def unbroken(text: str) -> Markup:
    """The same text, in which a percent sign stays with its number and an option is whole."""
    return whole_options(escape(text).replace(" %", "\N{NO-BREAK SPACE}%"))


def whole_options(text: str) -> Markup:
    """The same text, in which an option stays with its dashes and its number."""
    return Markup(re.sub(r"(?<![\w-])--[a-z][a-z-]*(?: \d+)?", r"<code>\g<0></code>", str(escape(text))))


# Tables -----------------------------------------------------------------------------------------------------------


def make_tables(runs: Sequence[RunRecord], tell: Tell) -> Tables:
    """Classes, confidences and pairs of finished runs, one run of each kind."""
    tables = Tables()
    finished = [run for run in first_folds(runs) if run.summary]
    try:
        for run in finished:
            result = tried(run, tell)
            tables.judged.append(Judged(run.name, class_results(run), accepted(result)))
        for first, second in pairs(runs):
            for run in (first, second):
                tried(run, tell)
            tables.paired.append(paired(first, second))
    except AggMatchError as error:
        tables.notes.append(str(error))
    return tables


@dataclass(frozen=True)
class ClassTable:
    """Accuracy by class of groups of runs under one condition."""

    condition: str
    names: list[str]
    rows: list[tuple[str, list[float]]]


def class_tables(runs: Sequence[RunRecord]) -> Iterator[ClassTable]:
    """Accuracies of the classes side by side, means over the runs of a kind, a table a condition."""
    for condition, part in conditions([run for run in runs if run.summary]).items():
        kinds = grouped(part)
        by_kind = [[run.summary["class_accuracy"] for run in group if run.summary] for group in kinds.values()]
        rows = [
            (name, [sum(each[name] for each in tables) / len(tables) for tables in by_kind]) for name in by_kind[0][0]
        ]
        yield ClassTable(condition, list(kinds), rows)


# Figures ----------------------------------------------------------------------------------------------------------


def tell_chapter(chapter: Chapter, runs: Sequence[RunRecord], tell: Tell, quick: bool) -> Told | None:
    """The figures of a chapter; None where there is nothing to tell."""
    told = Told(chapter)
    if quick and not chapter.quick:
        return None
    all_of_them = [module for each in CHAPTERS for module in each.analyses]
    for module in chapter.analyses:
        name, started = module.__name__.rpartition(".")[2], monotonic()
        tell(f"{name}, {all_of_them.index(module) + 1} of {len(all_of_them)} ...")
        try:
            for panel in module.panels(runs):
                if len(runs) == 1 and panel.name.startswith("class-accuracy"):
                    continue  # the table of classes says it
                told.illustrations.append(illustrate(panel, f"{chapter.anchor}-{len(told.illustrations) + 1}"))
                tell(f"  {panel.title}: {monotonic() - started:.1f} s")
                started = monotonic()
        except AggMatchError as error:
            told.notes.append(str(error))
            tell(f"  Not shown: {error}")
    return told if told.illustrations or told.notes else None


def left_out(run: RunRecord) -> Iterator[str]:
    """Sentences on the figures that the run's folder does not suffice for."""
    if not run.summary:
        yield f"{run.name} is not finished, so its accuracy by class and by confidence and its confusion are left out."
    if not run.snapshots:
        queue = "what aggregation changed, its doubtful pseudo labels, its attention, " if has_queue(run) else ""
        yield (
            f"{run.name} {no_snapshots(run)}, so {queue}the calibration of its pseudo labels and its feature space "
            f"are left out."
        )


def illustrate(panel: Panel, anchor: str) -> Illustration:
    """A panel as an element of the page; all its ids start with the anchor."""
    return Illustration(anchor, panel.title, panel.caption, cut(replace(panel, name=anchor)))
