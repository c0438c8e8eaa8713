"""Commands that train or show several runs: compare, reproduce, results, demo."""

import shlex
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aggmatch.cli.app import (
    AllowCode,
    Data,
    DataDir,
    Device,
    Download,
    Labels,
    Quiet,
    Recipe,
    Set,
    Steps,
    app,
    gather,
    listed,
)
from aggmatch.cli.cluster import Address, AtOnce, On, Place, SlurmOption, Submit, raise_failed, train_all
from aggmatch.cli.train import say_what_was_read
from aggmatch.console import say, stdout
from aggmatch.errors import AggMatchError
from aggmatch.registry import short_name
from aggmatch.storage.files import check_writable, write_atomically
from aggmatch.tables import plural

if TYPE_CHECKING:
    from aggmatch.experiments.planned import PlannedRun
    from aggmatch.runs.stored import StoredRun

FOLDS = "Number of draws of the labelled images, from fold 0 on."


@app.command()
def compare(
    data: Data = None,
    methods: Annotated[str | None, typer.Option(help="Comma-separated names.", show_default="all")] = None,
    labels: Labels = None,
    folds: Annotated[int, typer.Option(help=FOLDS, min=1)] = 3,
    steps: Steps = None,
    recipe: Recipe = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the runs.", show_default="runs/compare-DATA-LABELS")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Settings of all runs from a TOML file, without method, fold and split.")
    ] = None,
    set_: Set = None,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = None,
    on: On = "local",
    at_once: AtOnce = None,
    address: Address = None,
    slurm: SlurmOption = None,
    submit: Submit = False,
    allow_code: AllowCode = None,
    quiet: Quiet = False,
) -> None:
    """Train several methods on the same folds and print mean ± std. Run the same command again to continue."""
    place = Place(on, at_once, address, slurm or (), submit)
    places = {"data_dir": data_dir, "device": device}
    layers = gather(config, set_, allow_code, data=data, labels=labels, steps=steps, recipe=recipe, **places)

    from aggmatch.experiments import compare as experiment
    from aggmatch.experiments.planned import collect
    from aggmatch.methods import METHODS

    settings = experiment.plan(listed(methods) or METHODS.names(), folds, layers)
    first = settings[0].data
    out = out or Path("runs") / f"compare-{Path(short_name(first.name)).name}-{first.labels or 'all'}"
    runs = experiment.place(settings, out)
    on_read = partial(say_what_was_read, settings[0], quiet=quiet, timed=False)
    for name, why in experiment.find_misfits(runs, download=download, on_read=on_read).items():
        if methods:
            advice = f"Change that for all methods with --set, or leave {name} out of --methods."
            raise AggMatchError(f"Nothing was started, because {name} cannot be trained: {why} {advice}")
        say(f"Left out, because it cannot be trained here: {name}. {why}", error=True)
        runs = [run for run in runs if run.settings.method_name != name]
    engine = place.engine(out, quiet=quiet, download=download)
    failed = train_all(runs, engine, quiet=quiet)
    if engine.later and not any(run.finished for run in runs):
        return
    stored = collect(runs)
    table = experiment.compare(stored)
    stdout.print(table)
    for remark in experiment.remarks(stored, table):
        say(remark)
    say(f"Also in {', '.join(map(str, experiment.write(stored, out)))}")
    raise_failed(failed, len(runs))


@app.command()
def reproduce(
    table: Annotated[
        str, typer.Argument(help="main, noise, per-class, components, similarity, confidence, queue or momentum.")
    ],
    methods: Annotated[str | None, typer.Option(help="Only these, comma-separated.", show_default="all")] = None,
    data: Annotated[str | None, typer.Option(help="Only these data sets, comma-separated.", show_default="all")] = None,
    labels: Annotated[
        str | None, typer.Option(help="Only these numbers of labels, comma-separated.", show_default="all")
    ] = None,
    folds: Annotated[int | None, typer.Option(help=FOLDS, min=1, show_default="the paper's")] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps.", show_default="2^20")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of runs and tables.", show_default="runs/reproduce")] = None,
    results: Annotated[
        list[Path] | None, typer.Option(help="Make the table from results files and train nothing; repeatable.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs, their state and the time they take.")
    ] = False,
    on: On = "local",
    at_once: AtOnce = None,
    address: Address = None,
    slurm: SlurmOption = None,
    submit: Submit = False,
    set_: Set = None,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Train the runs of a table of the paper; print our numbers next to the paper's. Run it again to continue."""
    place = Place(on, at_once, address, slurm or (), submit)
    layers = gather(None, set_, steps=steps, data_dir=data_dir, device=device)
    wanted: dict[str, Sequence[object]] = {
        "method.name": listed(methods),
        "data.name": listed(data),
        "data.labels": numbers("--labels", labels),
    }

    from aggmatch.experiments import paper, paper_comparison
    from aggmatch.experiments import reproduce as experiment
    from aggmatch.experiments.planned import collect
    from aggmatch.runs.stored import most_complete
    from aggmatch.settings import parts_named

    chosen = experiment.narrow(paper.find_table(table), {key: values for key, values in wanted.items() if values})
    folder = out or Path("runs/reproduce")
    plan = experiment.plan(chosen, layers, folder, folds)
    failed = 0
    if results:
        named = [name for layer in layers for name in parts_named(layer.values)]
        stored = most_complete(run for path in results for run in read_file(path, named))
        any_length = not any("train.steps" in layer.values for layer in layers)
        filled = paper_comparison.fill(plan, stored, any_length=any_length)
        left_out = paper_comparison.describe_left_out(plan, stored, filled, any_length=any_length)
        for line in [*left_out, f"In this table: {len(filled.runs)} of {plural(len(stored), 'stored run')}."]:
            say(line, error=True)
    elif dry_run:
        from aggmatch.experiments.estimate import estimate, find_paces, list_runs

        stdout.print(list_runs(plan))
        if any(not run.finished for run in plan.runs) and (paces := find_paces(plan.runs, partial(say, error=True))):
            stdout.print(estimate(plan, paces, at_once or 1))
        return
    else:
        experiment.require_data(plan.runs, download=download)
        engine = place.engine(folder, quiet=quiet, download=download)
        failed = train_all(plan.runs, engine, quiet=quiet)
        filled = paper_comparison.fill(plan, collect(plan.runs), any_length=False)
    stdout.print(filled.fitting(stdout.width))
    if out or not results:
        say(f"Also in {', '.join(map(str, filled.write(folder)))}")
    raise_failed(failed, len(plan.runs))


def numbers(option: str, text: str | None) -> list[int]:
    """The whole numbers in a comma-separated text."""
    for name in listed(text):
        if not name.isdecimal():
            raise AggMatchError(
                f"{option} takes comma-separated whole numbers, got '{name}'. For example: {option} 40,250"
            )
    return [int(name) for name in listed(text)]


def percentages(option: str, text: str | None) -> list[float]:
    """The numbers from 0 to 100 in a comma-separated text."""
    try:
        found = [float(name) for name in listed(text)]
    except ValueError:
        found = [-1.0]
    if not all(0 <= percent <= 100 for percent in found):
        raise AggMatchError(f"{option} takes comma-separated percentages, got '{text}'. For example: {option} 90,92.5")
    return found


@app.command("results")
def results_(
    places: Annotated[
        list[Path],
        typer.Argument(help="Run folders, folders with runs below them, or results files.", metavar="RUNS..."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Store the runs in a results file, one line of JSON per run.")
    ] = None,
    at: Annotated[str | None, typer.Option(help="Show accuracies after these steps, comma-separated.")] = None,
    by_class: Annotated[bool, typer.Option("--by-class", help="Show accuracies of the classes.")] = False,
    reach: Annotated[
        str | None, typer.Option(help="Show the minutes until runs had these accuracies in percent, comma-separated.")
    ] = None,
    as_: Annotated[str | None, typer.Option("--as", help="Print the table as md, tex, csv or json.")] = None,
    allow_code: AllowCode = None,
) -> None:
    """Print runs and stored results as a table, or store them in a results file, replacing lines of the same runs."""
    if out and (at or by_class or reach or as_):
        shown = "--at, --by-class, --reach and --as"
        raise AggMatchError(f"--out stores runs and prints no table: leave out {shown}, or --out.")
    steps, accuracies = numbers("--at", at), percentages("--reach", reach)

    from aggmatch.experiments.results_table import ResultsTable, group_runs
    from aggmatch.runs.results import add_results

    allow = allow_code or []
    runs = read_places(places, allow)
    if out:
        check_writable(out)
        replaced, unfinished = add_results(out, runs, allow), sum(not run.finished for run in runs)
        facts = [f"in place of {plural(replaced, 'earlier line')}"] * bool(replaced)
        facts += [f"{unfinished} not finished yet"] * bool(unfinished)
        say(", ".join([f"Wrote {plural(len(runs), 'run')} to {out}", *facts]) + ".")
        return
    table = ResultsTable(group_runs(runs), steps, by_class, accuracies)
    if as_:
        say(table.printed(as_).rstrip("\n"))
    else:
        stdout.print(table.for_readers())
    evaluated = {step for run in table.runs for step, _ in run.evaluations}
    for step in steps:
        if evaluated and step not in evaluated:
            nearest = min(evaluated, key=lambda other: abs(other - step))
            say(f"No run was evaluated after step {step:,}; the nearest is {nearest:,}.", error=True)
    if duplicates := len(table.duplicates):
        say(f"Left out {plural(duplicates, 'run')}: another run of the same settings and fold is shown.", error=True)
    if unevaluated := len(runs) - len(table.runs) - duplicates:
        say(f"Left out {plural(unevaluated, 'run')} not evaluated yet.", error=True)


def read_places(places: list[Path], allow: list[str]) -> "list[StoredRun]":
    """Read run folders and results files; of a run that is found twice, take the most complete version."""
    from aggmatch.runs.stored import find_runs, most_complete, read_run

    found: list[StoredRun] = []
    for place in places:
        if place.is_file() or place.suffix == ".jsonl":
            found += read_file(place, allow)
            continue
        for path in find_runs([place]):
            try:
                found.append(read_run(path, allow=allow))
            except AggMatchError as error:
                say(f"Left out {path}: {error.with_options}", error=True)
    if not found:
        raise AggMatchError(f"No run could be read in {', '.join(map(str, places))}.")
    runs = most_complete(found)
    if twice := len(found) - len(runs):
        say(f"Left out {plural(twice, 'run')}: the same settings, labels and images as another one.", error=True)
    return runs


def read_file(path: Path, allow: list[str]) -> "list[StoredRun]":
    """Read a results file; warn about lines that cannot be used."""
    from aggmatch.runs.results import read_results

    lines = read_results(path, allow)
    for problem, count in Counter(line.problem for line in lines if not line.run).items():
        say(f"{path}: left out {plural(count, 'line')}. {problem}", error=True)
    return [line.run for line in lines if line.run]


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="Folder of the runs.", show_default="runs/demo-TIME")] = None,
    fold: Annotated[int, typer.Option(help="Which draw of the labelled images.", min=0)] = 0,
    quiet: Quiet = False,
) -> None:
    """Compare AggMatch with three other methods on digits, with one label per class, and write a report."""
    from aggmatch.experiments import demo as experiment
    from aggmatch.experiments.engines.local import InParallel, cores

    started = time.monotonic()
    out = out or Path("runs") / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    again = shlex.join(["aggmatch", "demo", "--out", str(out), "--fold", str(fold)])
    say(experiment.INTRODUCTION, quiet=quiet)

    def train(runs: "Sequence[PlannedRun]") -> None:
        engine = InParallel(min(cores(), len(runs)))
        raise_failed(train_all(runs, engine, quiet=quiet, again=again), len(runs), again)

    outcome = experiment.run(out, fold, train)
    stdout.print(outcome.table())
    say(f"Run folders: {out}")
    try:
        from aggmatch.report.page import page

        say("Writing the report ...", quiet=quiet)
        html = page(outcome.runs, others=[(experiment.RIVAL, outcome.rival_accuracy)])
        write_atomically(out / "report.html", html.encode())
        say(f"Report: {out / 'report.html'}", quiet=quiet)
    except Exception as error:  # the results are printed already
        say(f"The report could not be written: {error}", error=True)
    say(f"The demo took {time.monotonic() - started:.0f} s.", quiet=quiet)
