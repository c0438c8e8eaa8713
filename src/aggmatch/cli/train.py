"""Commands for one run: train and evaluate; and list."""

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aggmatch.cli.app import (
    AllowCode,
    Config,
    Data,
    DataDir,
    Device,
    Download,
    Labels,
    Quiet,
    Recipe,
    Set,
    Steps,
    Trained,
    app,
    follow_run,
    gather,
    printing,
)
from aggmatch.console import say, stdout
from aggmatch.errors import AggMatchError, unknown
from aggmatch.registry import short_name
from aggmatch.tables import Table

if TYPE_CHECKING:
    from aggmatch.data import DataSet, Split
    from aggmatch.settings import RunSettings
    from aggmatch.training.run import Run


@app.command()
def train(
    data: Data = None,
    method: Annotated[str | None, typer.Option(help="See `aggmatch list methods`.", show_default="aggmatch")] = None,
    labels: Labels = None,
    fold: Annotated[int | None, typer.Option(help="Which draw of the labelled images.", show_default="0")] = None,
    steps: Steps = None,
    recipe: Recipe = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run.", show_default="runs/DATA-LABELS-METHOD-foldN")
    ] = None,
    config: Config = None,
    set_: Set = None,
    split: Annotated[Path | None, typer.Option(help="Reuse the labelled images of a split.json.")] = None,
    labels_file: Annotated[
        Path | None, typer.Option(help="Table of labels for a folder of images: CSV with columns file, label.")
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option("--from", metavar="RUN", help="Start from the networks of an earlier run, with its test images."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder.")] = False,
    tries: Annotated[
        int, typer.Option(help="Train with this many seeds and name the run with the lowest loss.", min=1)
    ] = 1,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard logs too.")] = False,
    allow_code: AllowCode = None,
    quiet: Quiet = False,
) -> None:
    """Train a classifier from a few labelled and many unlabelled images."""
    layers = gather(
        config,
        set_,
        allow_code,
        data=data,
        method=method,
        labels=labels,
        fold=fold,
        steps=steps,
        recipe=recipe,
        split=split and split.resolve(),
        labels_file=labels_file and labels_file.resolve(),
        data_dir=data_dir,
        device=device,
        tensorboard=tensorboard or None,
    )

    from aggmatch.distributed import joined
    from aggmatch.runs.folder import run_name
    from aggmatch.settings import resolve, with_split
    from aggmatch.training import begin, earlier

    if from_ is not None:
        if resume:
            raise AggMatchError("--from starts a new run and --resume continues one. Choose one of them.")
        layers = [earlier.taken_settings(from_, allow_code or ()), *layers]
    with joined() as processes, printing(processes.first):
        if out is None:
            out = Path("runs") / run_name(resolve(with_split(layers)))
            out = Path(processes.share(str(earlier.free_folder(out) if from_ is not None else out)))
        if tries > 1:
            if processes.divides:
                raise AggMatchError("--tries trains whole runs, which several processes cannot share. Leave it out.")
            train_tries(resolve(with_split(layers)), out, tries, quiet=quiet, download=download)
            return
        if resume:
            run = begin.resume(out, layers, download=download, allow=allow_code or (), processes=processes)
            if not run.finished:
                say_what_was_read(run.settings, run.data, run.split, quiet=quiet, timed=False)
        else:
            settings = resolve(with_split(layers))
            on_read = partial(say_what_was_read, settings, quiet=quiet, timed=not processes.divides)
            run = begin.start(settings, out, download=download, on_read=on_read, processes=processes)
        if run.state.inputs.rows is not None and not run.finished:
            say_where_images_are(run, quiet=quiet)
        follow_run(run, quiet=quiet or not processes.first)
        if not quiet and processes.first:
            print_summary(run)
        if not processes.connected:
            estimate_if_few_test_images(run, quiet=quiet)


def train_tries(settings: "RunSettings", out: Path, count: int, *, quiet: bool, download: bool) -> None:
    """Train runs that differ in their seed, resume those that exist, and say which one has the lowest loss."""
    from aggmatch.cli.cluster import Place, raise_failed, train_all
    from aggmatch.data import make_split
    from aggmatch.devices import choose_device
    from aggmatch.experiments import tries
    from aggmatch.experiments.planned import collect

    data = settings.load_data(download=download)
    say_what_was_read(settings, data, make_split(data, settings.data), quiet=quiet, timed=False)
    runs = tries.plan(settings, out, count)
    place = Place(at_once=tries.at_once(count, choose_device(settings.runtime.device).type))
    failed = train_all(runs, place.engine(out, quiet=quiet, download=download), quiet=quiet)
    stored = tries.by_loss(collect(runs))
    stdout.print(tries.table(stored).without_empty())
    say(tries.verdict(stored))
    raise_failed(failed, len(runs))


def say_what_was_read(settings: "RunSettings", data: "DataSet", split: "Split", *, quiet: bool, timed: bool) -> None:
    """Print what own images are and how they are learned, and warn about what looks wrong; nothing for other data.

    timed: whether to measure how long the run will take, and say it.
    """
    from aggmatch.data import is_own_images
    from aggmatch.data.own.folder import unused_table
    from aggmatch.data.own.summary import describe, doubts
    from aggmatch.runs.stats import small_test

    if not is_own_images(settings.data.name):
        return
    say(f"{describe(data, split)}.", quiet=quiet)
    if not settings.data.labels_file and (table := unused_table(Path(settings.data.name))):
        advice = f"If it holds the labels: --labels-file {table}"
        say(f"Warning: {table} is not used, because the folders are classes. {advice}", error=True)
    for doubt in [*doubts(data, split), small_test(len(data.test))]:
        if doubt:
            say(f"Warning: {doubt}", error=True)
    if not quiet:
        from aggmatch.experiments.forecast import forecast

        say(how_it_learns(settings, f": {forecast(settings, data, split)}" if timed else ""))


def how_it_learns(settings: "RunSettings", time: str = "") -> str:
    """Return a sentence on the network of a run and its length, and one on how to get a better network.

    time: the end of the first sentence, on the time that it takes.
    """
    from aggmatch.models.pretrained import HINT, weights_installed

    name, steps = short_name(settings.model.name), f"{settings.train.steps:,} steps"
    match settings.train.backbone:
        case "frozen":
            return f"{name} is pretrained and frozen; {steps} train a classifier on its features{time}."
        case "finetune":
            return f"{name} is pretrained; {steps} train all its layers{time}."
        case "scratch":
            more = "" if weights_installed() else f" Pretrained weights need far fewer labels. {HINT}"
            return f"{name} is trained from scratch, {steps}{time}.{more}"


def say_where_images_are(run: "Run", *, quiet: bool) -> None:
    """Print where training images are that are not on the device."""
    size = f"{run.data.train.pixels.nbytes / 1e9:,.1f} GB"
    kept = "stay in host memory" if run.state.place == "host" else "stay on disk"
    say(f"The training images, {size}, {kept}: batches are read ahead of their steps (runtime.place).", quiet=quiet)


def estimate_if_few_test_images(run: "Run", *, quiet: bool) -> None:
    """Estimate the accuracy of a run on images of your own by its labels, if its test images are too few to tell it."""
    from aggmatch.data import is_own_images
    from aggmatch.runs.folder import Estimated
    from aggmatch.runs.stats import FEW_TEST_IMAGES
    from aggmatch.training.crossval import estimate_accuracy

    few = is_own_images(run.settings.data.name) and len(run.data.test) < FEW_TEST_IMAGES
    if few and not run.folder.estimate.exists():
        try:
            judged = estimate_accuracy(run)
        except KeyboardInterrupt:  # the run itself is finished
            command = f"aggmatch train --resume --out {shlex.quote(str(run.folder.path))}"
            say(f"The accuracy was not estimated. To do it later: {command}", quiet=quiet)
            return
        if judged:
            run.folder.write_estimate(Estimated(accuracy=judged.accuracy, low=judged.low, high=judged.high))
    if found := run.folder.estimated():
        say(
            f"Estimated accuracy on images without a label: {found['accuracy']:.0f} %, 95 % interval "
            f"{found['low']:.0f} to {found['high']:.0f} %, by cross-validation on the labelled images.",
            quiet=quiet,
        )


def print_summary(run: "Run") -> None:
    """Print the result of a finished run and its folder."""
    from aggmatch.data import is_own_images
    from aggmatch.runs.stats import FEW_TEST_IMAGES, at_least_as_good, median_of_last, wilson

    summary, records = run.folder.result(), run.folder.records()
    assert summary is not None, "the run is finished"
    name = f"accuracy_{summary['network']}"
    median = median_of_last([record[name] for record in records if name in record])
    last = f"; median of the last {median.evaluations} evaluations {median.value:.2f} %" if median else ""
    accuracy, images = summary["accuracy"], len(run.data.test)
    result = "accuracy not measured, without test images"
    if accuracy is not None:
        few = f" of {images} images, 95 % interval {wilson(round(accuracy * images / 100), images)}"
        result = (
            f"{accuracy:.2f} % test accuracy{few if 0 < images < FEW_TEST_IMAGES else ''} ({summary['network']} "
            f"network, last step{last if median and median.evaluations > 1 else ''})"
        )
    say(
        f"{short_name(summary['method'])} on {Path(short_name(summary['data'])).name}, {summary['labels']} labels, "
        f"fold {summary['fold']}, {summary['steps']} steps, {run.settings.recipe} recipe: {result}, "
        f"{summary['seconds']:.0f} s."
    )
    if probes := summary.get("probes"):
        classic = ", ".join(f"{name} {value:.2f} %" for name, value in probes.items())
        say(f"On frozen features, with the same labels: {classic}.")
        if images >= FEW_TEST_IMAGES and (simpler := at_least_as_good(probes, accuracy)):
            say(f"{simpler} is at least as good here, and simpler: use it (docs/pretrained.md).")
    if run.settings.train.backbone == "frozen" and is_own_images(run.settings.data.name):
        command = f"aggmatch train --from {shlex.quote(str(run.folder.path))} --set train.backbone=finetune"
        say(f"To train all layers from here, which takes minutes and is usually better: {command}")
    say(f"Run folder: {run.folder.path}")


@app.command()
def evaluate(
    run: Trained,
    images: Annotated[
        Path | None, typer.Argument(help="Other images: a folder or .zip with one subfolder per class.")
    ] = None,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = None,
    allow_code: AllowCode = None,
) -> None:
    """Measure the test accuracy of a run's model, overall and by class, or its accuracy on other images."""
    from aggmatch.data import Split
    from aggmatch.inference.model import TrainedModel
    from aggmatch.runs.folder import RunFolder

    model = TrainedModel.load(run, gather(data_dir=data_dir, device=device), allow=allow_code or ())
    if images is None:
        data = model.data(download=download)
        if (path := RunFolder(run).split).exists():
            split = Split.read(path, data)  # fails if the training images have changed
            if not split.tested_on(data):
                say(f"Warning: the test images of {data.name} have changed since the run.", error=True)
        if not len(data.test):
            raise AggMatchError(f"{data.name} has no test images. Name other images: aggmatch evaluate RUN FOLDER")
    result = model.evaluate(data if images is None else images)
    columns = zip(model.classes, result.class_sizes, result.class_accuracy, strict=True)
    rows = [(name, count, accuracy if count else None) for name, count, accuracy in columns]
    stdout.print(Table(["class", "images", "accuracy %"], rows))
    what = "test images" if images is None else f"images in {images}"
    say(
        f"{short_name(model.settings.method_name)}, {model.settings.recipe} recipe: {result.accuracy:.2f} % of "
        f"{len(result.labels)} {what}; mean over classes {result.balanced_accuracy:.2f} %."
    )


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(metavar="methods|data|models|views|figures|recipes|settings")],
    method: Annotated[str, typer.Option(help="Whose settings to list.")] = "aggmatch",
    data: Annotated[str | None, typer.Option(help="List settings with their values on this data set.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Show the methods, data sets, networks, views, figures, recipes or settings to choose from."""
    from aggmatch.cli import listing

    tables: dict[str, Callable[[], Table | list[Table]]] = {
        "methods": listing.methods,
        "data": lambda: listing.data(data_dir or Path("data")),
        "models": listing.models,
        "views": listing.views,
        "figures": listing.figures,
        "recipes": listing.recipes,
        "settings": lambda: listing.settings(method, data),
    }
    if what not in tables:
        raise unknown("list", what, tables)
    shown = tables[what]()
    for table in shown if isinstance(shown, list) else [shown]:
        stdout.print(table)
