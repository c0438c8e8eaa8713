"""Commands around one run: train, evaluate, list."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aggmatch.cli.app import (
    Config,
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
)
from aggmatch.errors import unknown

if TYPE_CHECKING:
    from aggmatch.tables import Table
    from aggmatch.training.run import Run


@app.command()
def train(
    data: Data = None,
    method: Annotated[str | None, typer.Option(help="See `aggmatch list methods`.", show_default="aggmatch")] = None,
    labels: Labels = None,
    fold: Annotated[int | None, typer.Option(help="Which draw of the labelled images.", show_default="0")] = None,
    steps: Steps = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run.", show_default="runs/DATA-LABELS-METHOD-foldN")
    ] = None,
    config: Config = None,
    set_: Set = None,
    split: Annotated[Path | None, typer.Option(help="Reuse the labelled images of a split.json.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder.")] = False,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard logs too.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train a classifier from a few labelled and many unlabelled images."""
    layers = gather(
        config,
        set_,
        data=data,
        method=method,
        labels=labels,
        fold=fold,
        steps=steps,
        split=split and split.resolve(),
        data_dir=data_dir,
        device=device,
        tensorboard=tensorboard or None,
    )

    from aggmatch.runs.folder import run_name
    from aggmatch.settings import resolve, with_split
    from aggmatch.training import run as loop

    if out is None:
        out = Path("runs") / run_name(resolve(with_split(layers)))
    if resume:
        run = loop.resume(out, layers, download=download)
    else:
        run = loop.start(resolve(with_split(layers)), out, download=download)
    follow_run(run, quiet=quiet)
    if not quiet:
        print_summary(run)


def print_summary(run: "Run") -> None:
    """Two lines at the end of a run."""
    from aggmatch.console import say
    from aggmatch.runs.summary import LAST_EVALUATIONS

    summary = run.folder.result()
    assert summary is not None, "it has just been written"
    evaluations = sum(f"accuracy_{summary['network']}" in record for record in run.folder.records())
    counted = min(evaluations, LAST_EVALUATIONS)
    median = f"median of the last {counted} evaluations {summary['accuracy_median_of_last_20']:.2f} %"
    say(
        f"{summary['method']} on {Path(summary['data']).name}, {summary['labels']} labels, fold {summary['fold']}, "
        f"{summary['steps']} steps: {summary['accuracy']:.2f} % test accuracy "
        f"({summary['network']} network, last step{'; ' + median if evaluations > 1 else ''}), "
        f"{summary['seconds']:.0f} s."
    )
    say(f"Run folder: {run.folder.path}")


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    images: Annotated[Path | None, typer.Argument(help="Other images: a folder with one of each class.")] = None,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = None,
) -> None:
    """Test accuracy of a finished run's model, in all and by class; or its accuracy on other images."""
    from aggmatch.console import say, stdout
    from aggmatch.data import Split
    from aggmatch.inference.model import TrainedModel
    from aggmatch.runs.folder import RunFolder
    from aggmatch.tables import Table

    model = TrainedModel.load(run, gather(None, None, data_dir=data_dir, device=device))
    if images is None:
        data = model.data(download=download)
        if (path := RunFolder(run).split).exists():
            split = Split.read(path, data)  # refuses a folder whose images are no longer those it was trained on
            if not split.tested_on(data):
                say(f"Warning: the test images of {data.name} are not those that the run was tested with.", error=True)
    result = model.evaluate(data if images is None else images)
    columns = zip(model.classes, result.class_sizes, result.class_accuracy, strict=True)
    rows = [(name, count, accuracy if count else None) for name, count, accuracy in columns]
    stdout.print(Table(["class", "images", "accuracy %"], rows).rich())
    what = "test images" if images is None else f"images in {images}"
    say(f"{result.accuracy:.2f} % of {len(result.labels)} {what}; mean over classes {result.balanced_accuracy:.2f} %.")


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(metavar="methods|data|recipes|settings")],
    method: Annotated[str, typer.Option(help="Whose settings to list.")] = "aggmatch",
    data: Annotated[str | None, typer.Option(help="List settings as they are on this data set.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Show the methods, data sets, recipes or settings there are."""
    from aggmatch.cli import listing as listings
    from aggmatch.console import stdout

    tables: dict[str, Callable[[], Table]] = {
        "methods": listings.methods,
        "data": lambda: listings.data(data_dir or Path("data")),
        "recipes": listings.recipes,
        "settings": lambda: listings.settings(method, data),
    }
    if what not in tables:
        raise unknown("list", what, tables)
    stdout.print(tables[what]().rich())
