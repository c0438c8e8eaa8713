"""Commands that train several runs and put them next to each other: compare, reproduce, results, demo."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aggmatch.cli.app import (
    Data,
    DataDir,
    Device,
    Download,
    Labels,
    Quiet,
    Set,
    Steps,
    app,
    follow_run,
    gather,
    listed,
)
from aggmatch.errors import AggMatchError

if TYPE_CHECKING:
    from aggmatch.experiments.parallel import Event
    from aggmatch.experiments.planned import PlannedRun
    from aggmatch.runs.results import Result


@app.command()
def compare(
    data: Data = None,
    methods: Annotated[
        str | None, typer.Option(help="Comma-separated names.", show_default="all that there are")
    ] = None,
    labels: Labels = None,
    folds: Annotated[int, typer.Option(help="Number of draws of the labelled images, from fold 0 on.", min=1)] = 3,
    steps: Steps = None,
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
    quiet: Quiet = False,
) -> None:
    """Train several methods on the same folds and print mean ± std. Run the same command again to continue."""
    layers = gather(config, set_, data=data, labels=labels, steps=steps, data_dir=data_dir, device=device)

    from aggmatch.console import say, stdout
    from aggmatch.experiments import compare as experiment
    from aggmatch.methods import METHODS

    settings = experiment.plan(listed(methods) or METHODS.names(), folds, layers)
    first = next(iter(settings.values())).data
    out = out or Path("runs") / f"compare-{Path(first.name).name}-{first.labels or 'all'}"
    runs = experiment.place(settings, out)
    for name, why in experiment.check(runs, download=download).items():
        if methods:
            advice = f"Change that for all methods with --set, or leave {name} out of --methods."
            raise AggMatchError(f"Nothing was started, as {name} could not be trained: {why} {advice}")
        say(f"Left out, as it cannot be trained here: {name}. {why}", error=True)
        runs = [run for run in runs if run.settings.method_name != name]
    failed = train_all(runs, 1, quiet=quiet)
    result = experiment.collect(runs)
    stdout.print(result.table().rich())
    say(f"Also in {', '.join(map(str, result.write(out)))}")
    raise_failed(failed, len(runs))


@app.command()
def reproduce(
    table: Annotated[
        str,
        typer.Argument(help="main, noise, per-class, components, similarity, confidence, queue or momentum."),
    ],
    methods: Annotated[str | None, typer.Option(help="Only these, comma-separated.", show_default="all")] = None,
    data: Annotated[str | None, typer.Option(help="Only these data sets, comma-separated.", show_default="all")] = None,
    labels: Annotated[
        str | None, typer.Option(help="Only these numbers of labels, comma-separated.", show_default="all")
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(help="Number of draws of the labelled images, from fold 0 on.", min=1, show_default="the paper's"),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps.", show_default="2^20")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of runs and tables.", show_default="runs/reproduce")] = None,
    results: Annotated[
        list[Path] | None, typer.Option(help="Make the table from stored results, training nothing; repeatable.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs, how far they are and how long they take.")
    ] = False,
    at_once: Annotated[int, typer.Option(help="Runs to train at the same time, each in a process.", min=1)] = 1,
    set_: Set = None,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Train what a table of the AggMatch paper takes and print it beside the paper's. Run it again to go on."""
    layers = gather(None, set_, steps=steps, data_dir=data_dir, device=device)
    wanted: dict[str, Sequence[object]] = {
        "method.name": listed(methods),
        "data.name": listed(data),
        "data.labels": numbers("--labels", labels),
    }

    from aggmatch.console import say, stdout
    from aggmatch.experiments import paper
    from aggmatch.experiments import paper_comparison as beside
    from aggmatch.experiments import reproduce as experiment
    from aggmatch.tables import plural

    chosen = experiment.narrow(paper.find_table(table), {key: values for key, values in wanted.items() if values})
    plan = experiment.plan(chosen, layers, out or Path("runs/reproduce"), folds)
    failed = 0
    if results:
        stored = read_stored(results)
        any_length = not any("train.steps" in layer.values for layer in layers)
        filled = beside.fill(plan, stored, any_length=any_length)
        left_out = beside.say_left_out(plan, stored, filled, any_length=any_length)
        for line in [*left_out, f"In this table: {len(filled.used)} of {plural(len(stored), 'stored run')}."]:
            say(line, error=True)
    elif dry_run:
        from aggmatch.experiments.estimate import estimate, find_paces, outlook

        stdout.print(outlook(plan).rich())
        if any(not run.finished for run in plan.runs) and (paces := find_paces(plan.runs, partial(say, error=True))):
            stdout.print(estimate(plan, paces, at_once).rich())
        return
    else:
        experiment.require_data(plan.runs, download=download)
        failed = train_all(plan.runs, at_once, quiet=quiet)
        filled = beside.fill(plan, experiment.collect(plan.runs), any_length=False)
    stdout.print(filled.fitting(stdout.width).rich())
    if out or not results:
        paths = filled.write(out or Path("runs/reproduce"))
        say(f"Also in {', '.join(map(str, paths))}")
    raise_failed(failed, len(plan.runs))


def numbers(option: str, text: str | None) -> list[int]:
    """The whole numbers in a comma-separated text."""
    for name in listed(text):
        if not name.isdecimal():
            raise AggMatchError(
                f"{option} takes comma-separated whole numbers, got '{name}'. For example: {option} 40,250"
            )
    return [int(name) for name in listed(text)]


def read_stored(paths: list[Path]) -> "list[Result]":
    """Results of several files, each run once; a word on lines that are none."""
    from aggmatch.console import say
    from aggmatch.runs.results import read_results
    from aggmatch.tables import plural

    found: dict[str, Result] = {}
    for path in paths:
        stored = read_results(path)
        found |= {result.key: result for result in stored.results}
        if stored.others:
            say(f"{path}: left out {plural(stored.others, 'line')} without a configuration.", error=True)
    return list(found.values())


def train_all(runs: "list[PlannedRun]", at_once: int, *, quiet: bool) -> int:
    """Train what is not finished, in this process or in several; returns how many failed.

    A signal ends the command with its usual code.
    """
    from aggmatch.console import say
    from aggmatch.experiments.parallel import AtOnce
    from aggmatch.experiments.planned import Failure, train_in_turn

    follow = lambda run, title: follow_run(run, quiet=quiet, title=title, again="the same command")  # noqa: E731
    training = AtOnce(runs, at_once)
    failed = 0
    for event in train_in_turn(runs, follow) if at_once == 1 else training.train():
        if isinstance(event, Failure):
            failed += 1
            say(f"{event.run.title} failed: {event.reason}", error=True)
        elif not quiet:
            print_event(event)
    if training.stopped_by is not None:
        say("Stopped and saved. Continue: the same command", error=True)
        raise typer.Exit(128 + training.stopped_by)
    return failed


def raise_failed(failed: int, runs: int) -> None:
    """End a command some of whose runs failed, if there are any, after all that it had to say."""
    if failed:
        raise AggMatchError(f"{failed} of {runs} runs failed, see above. The same command tries them again.")


def print_event(event: "Event") -> None:
    """A line on what a run in another process did."""
    from aggmatch.console import describe, say

    facts = [event.run.title, event.what]
    if event.record:
        train = event.run.settings.train
        facts = [event.run.title, f"step {event.record['step']}/{train.steps}"]
        facts += describe(dict(event.record), train.evaluated).values()
    say("  ".join(facts))


@app.command("results")
def results_(
    places: Annotated[
        list[Path],
        typer.Argument(help="Folders of runs, folders with runs below them, or files of results.", metavar="RUNS..."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Keep the runs in a file, one line of JSON a run; made or added to.")
    ] = None,
    at: Annotated[str | None, typer.Option(help="Show accuracies after these steps, comma-separated.")] = None,
    by_class: Annotated[bool, typer.Option("--by-class", help="Show accuracies of the classes.")] = False,
    as_: Annotated[str | None, typer.Option("--as", help="Print the table as md, tex, csv or json.")] = None,
) -> None:
    """Print runs and stored results as a table, or keep them in a file; lines of the same runs are replaced."""
    if out and (at or by_class or as_):
        raise AggMatchError("--out keeps runs and prints no table: leave out --at, --by-class and --as, or --out.")
    steps = numbers("--at", at)

    from aggmatch.console import say, stdout
    from aggmatch.experiments.results_table import Overview, group
    from aggmatch.tables import plural

    found = read_places(places)
    if out:
        keep(out, found)
        return
    overview = Overview(group(found), steps, by_class)
    if as_:
        say(overview.printed(as_).rstrip("\n"))
    else:
        stdout.print(overview.for_readers().rich())
    if others := len(overview.others):
        say(f"Left out {plural(others, 'run')}: another one of the same settings and fold is shown.", error=True)
    if without := len(found) - len(overview.results) - others:
        say(f"Left out {plural(without, 'run')} not evaluated yet or not understood by this version.", error=True)


def read_places(places: list[Path]) -> "list[Result]":
    """Results of run folders and of files of results, each run once, as it is best founded."""
    from aggmatch.runs.results import find_runs

    found: dict[str, Result] = {}
    for place in places:
        stored = place.is_file() or place.suffix == ".jsonl"
        for result in read_stored([place]) if stored else read_folders(find_runs([place])):
            known = found.setdefault(result.key, result)
            if result.standing >= known.standing:
                found[result.key] = result
    if not found:
        raise AggMatchError(f"No run could be read in {', '.join(map(str, places))}.")
    return list(found.values())


def read_folders(paths: list[Path]) -> "list[Result]":
    """Results of run folders; a word on those that cannot be read."""
    from aggmatch.console import say
    from aggmatch.runs.results import result_of

    results = []
    for path in paths:
        try:
            results.append(result_of(path))
        except AggMatchError as error:
            say(f"Left out {path}: {error}", error=True)
    return results


def keep(out: Path, found: "list[Result]") -> None:
    """Add runs to a file of results and say so."""
    from aggmatch.console import say
    from aggmatch.files import make_folder
    from aggmatch.runs.results import add_results
    from aggmatch.tables import plural

    make_folder(out.parent)
    replaced = add_results(out, found)
    unfinished = sum(not run.finished for run in found)
    facts = [f"Wrote {plural(len(found), 'run')} to {out}"]
    facts += [f"in place of {plural(replaced, 'earlier line')}"] * bool(replaced)
    facts += [f"{unfinished} not finished yet"] * bool(unfinished)
    say(f"{', '.join(facts)}.")


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="Folder of the runs.", show_default="runs/demo-TIME")] = None,
    fold: Annotated[int, typer.Option(help="Which draw of the labelled images.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Watch AggMatch learn digits from one label per class, beside training on the labels alone and its peers."""
    import time
    from datetime import datetime

    from aggmatch.cli.report import write_report
    from aggmatch.console import say, stdout
    from aggmatch.experiments import demo as experiment

    started = time.monotonic()
    out = out or Path("runs") / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    say(experiment.INTRODUCTION, quiet=quiet)
    result = experiment.run(out, fold, lambda run, title: follow_run(run, quiet=quiet, title=title))
    stdout.print(result.rich())
    say(f"Run folders: {out}")
    try:
        write_report([out / method for method in experiment.METHODS], out / "report.html", [], quiet=quiet)
    except Exception as error:  # what the demo is about is done and printed
        say(f"The report could not be made: {error}", error=True)
    say(f"All of it took {time.monotonic() - started:.0f} s.", quiet=quiet)
