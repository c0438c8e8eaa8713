"""A self-contained HTML page on one or several runs: what training did, how far to trust it, how to repeat it.

The page is made from the run folders alone and loads nothing. Parts that cannot be made (the data set is missing, the
run is not finished) are left out, with the reason.
"""

import base64
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from aggmatch import __version__
from aggmatch.config import Layer
from aggmatch.data import is_own_images
from aggmatch.errors import AggMatchError
from aggmatch.report import figures, summary, test_results, warnings
from aggmatch.report.figure import Panel, looks, svg
from aggmatch.report.pseudo_labels import explains, no_snapshots
from aggmatch.report.test_results import Progress, silent
from aggmatch.runs.stats import FEW_TEST_IMAGES, best_pairs, conditions, first_of_groups, grouped, tested_classes
from aggmatch.runs.stored import StoredRun, read_runs
from aggmatch.storage.files import write_atomically
from aggmatch.tables import duration, plural

if TYPE_CHECKING:
    from aggmatch.report.to_label import ToLabel

PAUSE = 4
"""Seconds between two checks of watched runs, and after which an open page reloads itself."""
RESEARCH = ("pseudo-labels", "attention", "features")
"""Chapters about how a method learns: the page folds them away."""
SHOWN_AS_TABLE = "class_accuracy"
"""The figure that a page on one run leaves out: its table of classes holds the same numbers."""


def page(
    runs: Sequence[StoredRun],
    *,
    others: Sequence[summary.Other] = (),
    progress: Progress = silent,
    quick: bool = False,
    refresh: int | None = None,
) -> str:
    """Make the page as HTML.

    runs: at least one; several are compared. others: results that are not runs, as (name, accuracy in percent on the
    same labels and test images), shown next to several runs. progress: called with a line of text for each part.
    quick: leave out what needs a network to be run. refresh: seconds after which the page reloads itself.

    Example: `Path("report.html").write_text(page(read_runs([Path("runs/mine")])))`.
    """
    tables = Tables() if quick else make_tables(runs, progress)
    chapters = list(make_chapters(runs, tables, progress, quick))
    ranked = summary.charts(runs, others) if len(runs) > 1 else []
    look, own_images = looks(runs), is_own_images(runs[0].settings.data.name)
    main = [chapter for chapter in chapters if chapter.anchor not in RESEARCH]
    if own_images:
        main.sort(key=lambda chapter: chapter.anchor != "predictions")  # what it gets right comes first
    firsts = first_of_groups(runs)
    environment = Environment(loader=PackageLoader("aggmatch.report"), autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.filters |= {
        "duration": duration,
        "plural": plural,
        "unbroken": unbroken,
        "whole_options": whole_options,
    }
    script = read_template(environment, "report.js")
    html = environment.get_template("report.html").render(
        title=title(runs),
        verdict=summary.verdict_of_several(ranked) if ranked else summary.verdict(runs[0]),
        charts=ranked,
        colors={bar.name: look[bar.run].color for chart in ranked for bar in chart.bars if bar.run},
        runs=[view(run, look[run].color) for run in runs],
        network=" and ".join(sorted({summary.NETWORKS[run.settings.train.evaluated] for run in runs})),
        warnings=collect_warnings(runs),
        chapters=main,
        research=[chapter for chapter in chapters if chapter.anchor in RESEARCH],
        tables=tables,
        own_images=own_images,
        to_label=to_label(runs[0]) if own_images and len(runs) == 1 and not quick else None,
        thresholds=test_results.THRESHOLDS,
        left_out=[] if quick else [reason for run in firsts for reason in left_out(run)],
        class_tables=list(class_tables(runs)) if ranked else [],
        differences=summary.difference_rows(firsts),
        difference_names=[run.name for run in firsts],
        quick=quick,
        refresh=refresh,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=__version__,
        style=Markup(read_template(environment, "report.css")),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    return html.encode(errors="replace").decode()  # the path of a folder may hold bytes that are not UTF-8


def watch(
    paths: Sequence[Path],
    out: Path,
    *,
    changes: Sequence[Layer] = (),
    allow: Iterable[str] = (),
    download: bool = False,
    progress: Progress = silent,
    pause: Callable[[float], None] = time.sleep,
) -> bool:
    """Rewrite the page whenever a run has logged more, until all are finished; return whether they are.

    While a run trains, the page leaves out what needs a network to be run; the last page is complete. Ctrl-C leaves a
    page of the current state.
    """
    allowed, shown = list(allow), ""
    runs = read_runs(paths, changes, allow=allowed, download=download)
    try:
        while not all(run.finished for run in runs):
            state = ", ".join(f"{run.name} step {run.steps:,} of {run.settings.train.steps:,}" for run in runs)
            if state != shown:
                write_atomically(out, page(runs, quick=True, refresh=PAUSE).encode())
                progress(state)
                shown = state
            pause(PAUSE)
            runs = read_runs(paths, changes, allow=allowed, download=download)
        write_atomically(out, page(runs, progress=progress).encode())
    except KeyboardInterrupt:
        write_atomically(out, page(runs, quick=True).encode())
        return False
    return True


# Words and numbers ------------------------------------------------------------------------------------------------


def title(runs: Sequence[StoredRun]) -> str:
    """What the page is about."""
    if len(runs) == 1:
        return f"{runs[0].method} on {runs[0].condition}"
    if len(conditions(runs)) == 1:
        return f"{len(runs)} runs on {runs[0].condition}"
    return f"{len(runs)} runs on {', '.join(dict.fromkeys(run.data_name for run in runs))}"


def view(run: StoredRun, color: str) -> dict[str, Any]:
    """What the templates show of one run in tables and lists."""
    images = summary.test_images(run)
    tested = run.tested if images is None else images
    return {
        "run": run,
        "color": color,
        "images": images,
        "enough": tested is None or tested >= FEW_TEST_IMAGES,
        "right": summary.correct(run.accuracy, images),
        "interval": summary.interval_of(run.accuracy, images),
        "precision": run.pseudo_labels("precision"),
        "coverage": run.pseudo_labels("coverage"),
        "settings": summary.setting_rows(run),
        "command": summary.command(run),
    }


def to_label(run: StoredRun) -> "ToLabel | None":
    """What to label next after a run on images of your own."""
    from aggmatch.report.to_label import find_to_label  # features and views, which other pages do not need

    return find_to_label(run)


def collect_warnings(runs: Sequence[StoredRun]) -> list[tuple[warnings.RunWarning, list[str]]]:
    """Each warning once, with the names of the runs that share it; no names for a single run or for all together."""
    found: dict[warnings.RunWarning, list[str]] = {warning: [] for warning in warnings.warnings_of_several(runs)}
    for run in runs:
        for warning in warnings.warnings_of(run):
            found.setdefault(warning, []).append(run.name)
    return [(warning, names if len(runs) > 1 else []) for warning, names in found.items()]


def left_out(run: StoredRun) -> Iterator[str]:
    """Sentences on what the page cannot show because the run's folder lacks the files."""
    if not run.has_model:
        yield (
            f"{run.name} has no model and no checkpoint yet, so its accuracy by class and by confidence and its "
            f"confusion are left out."
        )
    if run.snapshots:
        return
    parts = "the origin of its pseudo labels, its uncertain pseudo labels, its attention, " if explains(run) else ""
    parts += "the calibration of its pseudo labels and its feature space"
    yield f"{run.name} {no_snapshots(run)}, so {parts} are left out."


def read_template(environment: Environment, name: str) -> str:
    """The text of a file in the folder of the templates."""
    assert environment.loader
    return environment.loader.get_source(environment, name)[0]


def unbroken(text: str) -> Markup:
    """The text with percent signs tied to their numbers and options as code, so that no line breaks inside them."""
    return whole_options(escape(text).replace(" %", "\N{NO-BREAK SPACE}%"))


def whole_options(text: str) -> Markup:
    """The text with options such as `--steps 100` as code, so that no line breaks inside them."""
    return Markup(re.sub(r"(?<![\w-])--[a-z][a-z-]*(?: \d+)?", r"<code>\g<0></code>", str(escape(text))))


# Tables -----------------------------------------------------------------------------------------------------------


@dataclass
class Tables:
    """Tables that need predictions of the test images."""

    names: list[str] = field(default_factory=list)
    """The runs that are shown: the first of each group, if it has a model or a checkpoint."""
    classes: list[list[test_results.ClassResult]] = field(default_factory=list)
    """The classes of each run."""
    gallery: test_results.Gallery | None = None
    """The wrong test images of a single run."""
    accepted: list[dict[float, test_results.Accepted]] = field(default_factory=list)
    """What each run accepts at each confidence."""
    paired: list[test_results.Paired] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """What a reader must know about the predictions."""
    notes: list[str] = field(default_factory=list)
    """Why something is missing."""


def make_tables(runs: Sequence[StoredRun], progress: Progress) -> Tables:
    """Results by class, by confidence and in pairs."""
    tables = Tables()
    for run in (run for run in first_of_groups(runs) if run.has_model):
        try:
            add_results(tables, run, progress)
            tables.gallery = test_results.make_gallery(run) if len(runs) == 1 else None
        except AggMatchError as error:
            tables.notes.append(str(error))
    try:
        tables.paired += [test_results.paired(first, second, progress) for first, second in best_pairs(runs)]
    except AggMatchError as error:
        tables.notes.append(str(error))
    tables.notes = list(dict.fromkeys(tables.notes))
    return tables


def add_results(tables: Tables, run: StoredRun, progress: Progress) -> None:
    """Add the results of one run; an `AggMatchError` leaves the tables as they were."""
    result = test_results.test_predictions(run, progress)
    classes, changed = test_results.class_results(run), test_results.discrepancy(run)
    if not run.finished:
        tables.remarks.append(
            f"{run.name} is not finished: its predictions are those of the {run.model_words}, right on "
            f"{result.accuracy:.2f} % of the test images."
        )
    tables.classes.append(classes)
    tables.accepted.append({row.threshold: row for row in test_results.accepted(result)})
    tables.names.append(run.name)
    if changed:
        tables.remarks.append(changed)


class ClassTable(NamedTuple):
    """Accuracy by class of groups of runs under one condition."""

    condition: str
    names: list[str]
    rows: list[tuple[str, list[float]]]
    """Class, and its mean accuracy in percent in each group."""


def class_tables(runs: Sequence[StoredRun]) -> Iterator[ClassTable]:
    """A table for each condition: accuracies of the classes, averaged over the runs of a group, side by side."""
    for condition, members in conditions([run for run in runs if run.class_accuracy]).items():
        groups = grouped(members)
        rows = [
            (name, [sum(run.class_accuracy[name] for run in group) / len(group) for group in groups.values()])
            for name in tested_classes(members)
        ]
        yield ClassTable(condition, list(groups), rows)


# Figures ----------------------------------------------------------------------------------------------------------


class Illustration(NamedTuple):
    """A panel as an element of the page."""

    anchor: str
    panel: Panel
    drawings: list[tuple[str, str]]
    """Heading and SVG of each plot."""


@dataclass
class Chapter:
    """A chapter of the page."""

    anchor: str
    title: str
    lead: str
    illustrations: list[Illustration] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Why something is missing."""


def make_chapters(runs: Sequence[StoredRun], tables: Tables, progress: Progress, quick: bool) -> Iterator[Chapter]:
    """The chapters that have something to show, in reading order."""
    names: dict[str, list[str]] = {anchor: [] for anchor in figures.CHAPTERS}
    for name in figures.FIGURES.names():
        figure = figures.FIGURES.load(name)
        if (figure.quick or not quick) and not (len(runs) == 1 and name == SHOWN_AS_TABLE):
            names[figure.chapter].append(name)
    wanted = [anchor for anchor, members in names.items() if members or not quick]
    said: set[str] = set()
    for number, anchor in enumerate(wanted, 1):
        about = figures.CHAPTERS[anchor]
        chapter = Chapter(anchor, about.title, about.lead)
        progress(f"{about.title}, {number} of {len(wanted)} ...")
        draw_chapter(chapter, runs, names[anchor], progress)
        if anchor == "predictions":
            chapter.notes = list(dict.fromkeys([*tables.notes, *chapter.notes]))
        chapter.notes = [note for note in chapter.notes if note not in said]  # a reason is given once
        said.update(chapter.notes)
        if chapter.illustrations or chapter.notes or (anchor == "predictions" and tables.names):
            yield chapter


def draw_chapter(chapter: Chapter, runs: Sequence[StoredRun], names: list[str], progress: Progress) -> None:
    """Add the named figures to a chapter, or the reasons why they are missing."""
    started = time.monotonic()

    def missing(_: str, reason: str) -> None:
        if reason not in chapter.notes:
            chapter.notes.append(reason)
            progress(f"  Not shown: {reason}")

    for _, panel in figures.draw(runs, names, missing=missing):
        chapter.illustrations.append(illustrate(panel, f"{chapter.anchor}-{len(chapter.illustrations) + 1}"))
        progress(f"  {panel.title}: {time.monotonic() - started:.1f} s")
        started = time.monotonic()


def illustrate(panel: Panel, anchor: str) -> Illustration:
    """A panel as an element of the page; all ids in it start with the anchor."""
    drawings = [
        (plot.heading, svg(plot, f"{anchor}-{number}", plot.heading or panel.title))
        for number, plot in enumerate(panel.plots, 1)
    ]
    return Illustration(anchor, panel, drawings)
