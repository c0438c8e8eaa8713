"""The command line: parse, call, print. Nothing heavy is imported before a command needs it."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aggmatch import __version__
from aggmatch.config import Layer, read_assignment, read_file
from aggmatch.errors import AggMatchError, unknown

if TYPE_CHECKING:
    from aggmatch.tables import Table
    from aggmatch.training.loop import Run

app = typer.Typer(
    help="Image classification with very few labels: AggMatch and its peers under one honest protocol.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; repeatable.")]
Data = Annotated[str | None, typer.Argument(help="See `aggmatch list data`.", show_default="digits")]
Labels = Annotated[
    int | None, typer.Option(help="Labelled images in all, equal per class.", show_default="the recipe's")
]
Steps = Annotated[int | None, typer.Option(help="Training steps.", show_default="the recipe's")]
Config = Annotated[Path | None, typer.Option(help="Settings from a TOML file or a run's config.json.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of the downloaded data sets.", show_default="data")]
Download = Annotated[bool, typer.Option("--download", help="Fetch the data set's files if they are missing.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:N or auto.", show_default="auto")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]

KEYS = {
    "data": "data.name",
    "method": "method.name",
    "labels": "data.labels",
    "fold": "data.fold",
    "steps": "train.steps",
    "split": "data.split",
    "data_dir": "runtime.data_dir",
    "device": "runtime.device",
    "tensorboard": "runtime.tensorboard",
}
"""Option of the command line → the setting it stands for."""


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

    from aggmatch.training import loop
    from aggmatch.training.settings import resolve

    if out is None:
        out = default_folder(resolve(layers).to_dict())
    if resume:
        run = loop.resume(out, layers, download=download)
    else:
        run = loop.start(resolve(layers), out, download=download)
    follow_run(run, quiet=quiet)
    if not quiet:
        print_summary(run)


def gather(config: Path | None, assignments: list[str] | None, **options: Any) -> list[Layer]:
    """Layers of settings: the file, then the options that were given, then `--set`."""
    layers = [read_file(config)] if config else []
    for name, value in options.items():
        if value is not None:
            source = f"{'DATA' if name == 'data' else '--' + name.replace('_', '-')} {value}"
            layers.append(Layer(source, {KEYS[name]: str(value) if isinstance(value, Path) else value}))
    return layers + [read_assignment(text) for text in assignments or []]


def default_folder(settings: dict[str, Any]) -> Path:
    """Where a run goes when it is not told."""
    data, method = settings["data"], settings["method"]["name"].replace(":", ".")
    return Path("runs") / f"{Path(data['name']).name}-{data['labels']}-{method}-fold{data['fold']}"


def follow_run(run: "Run", *, quiet: bool, title: str = "", again: str = "") -> None:
    """Train with a live display; a signal becomes a sentence and the usual exit code."""
    from aggmatch.console import follow, stderr
    from aggmatch.training.loop import Stopped

    try:
        follow(
            run.train(),
            title=title or run.settings.method_name,
            done=run.state.steps_done,
            steps=run.settings.train.steps,
            network=run.settings.train.evaluated,
            quiet=quiet,
        )
    except Stopped as stop:
        again = again or f"aggmatch train --resume --out {run.folder.path}"
        stderr.print(f"Stopped and saved at step {stop.step}. Continue: {again}", highlight=False, soft_wrap=True)
        raise typer.Exit(128 + stop.signal_number) from None


def print_summary(run: "Run") -> None:
    """Two lines at the end of a run."""
    from aggmatch.console import stdout

    summary = run.folder.read_json(run.folder.summary)
    stdout.print(
        f"{summary['method']} on {summary['data']}, {summary['labels']} labels, fold {summary['fold']}, "
        f"{summary['steps']} steps: {summary['accuracy']:.2f} % test accuracy "
        f"({summary['network']} network, last step; "
        f"median of the last evaluations {summary['accuracy_median_of_last_20']:.2f} %), {summary['seconds']:.0f} s.",
        highlight=False,
        soft_wrap=True,
    )
    stdout.print(f"Run folder: {run.folder.path}", highlight=False, soft_wrap=True)


@app.command()
def compare(
    data: Data = None,
    methods: Annotated[str | None, typer.Option(help="Names with commas.", show_default="all that there are")] = None,
    labels: Labels = None,
    folds: Annotated[int, typer.Option(help="Number of draws of the labelled images, from fold 0 on.", min=1)] = 3,
    steps: Steps = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the runs.", show_default="runs/compare-DATA-LABELS")
    ] = None,
    config: Config = None,
    set_: Set = None,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Train several methods on the same folds and print mean ± std. The same words continue where it stopped."""
    layers = gather(config, set_, data=data, labels=labels, steps=steps, data_dir=data_dir, device=device)

    from aggmatch.console import stdout
    from aggmatch.experiments import compare as experiment
    from aggmatch.methods import known_methods

    names = [name.strip() for name in methods.split(",")] if methods else known_methods()
    runs = experiment.plan(names, folds, layers)
    first = next(iter(runs.values())).data
    out = out or Path("runs") / f"compare-{Path(first.name).name}-{first.labels}"
    follow = lambda run, title: follow_run(run, quiet=quiet, title=title, again="the same command")  # noqa: E731
    result = experiment.run(runs, out, follow, download=download)
    stdout.print(result.table().rich())
    stdout.print(f"Also in {', '.join(map(str, result.write(out)))}", highlight=False, soft_wrap=True)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = None,
) -> None:
    """Test accuracy of a finished run's model, in all and by class."""
    from aggmatch.console import stdout
    from aggmatch.inference import TrainedModel
    from aggmatch.tables import Table

    model = TrainedModel.load(run, gather(None, None, data_dir=data_dir, device=device))
    result = model.evaluate(model.data(download=download))
    rows = list(zip(model.classes, result.class_accuracy, strict=True))
    stdout.print(Table(["class", "accuracy %"], rows).rich())
    stdout.print(f"{result.accuracy:.2f} % of {len(result.labels)} test images.", highlight=False)


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(metavar="methods|data|recipes|settings")],
    method: Annotated[str, typer.Option(help="Whose settings to list.")] = "aggmatch",
    data_dir: DataDir = None,
) -> None:
    """Show the methods, data sets, recipes or settings there are."""
    from aggmatch import listings
    from aggmatch.console import stdout

    tables: dict[str, Callable[[], Table]] = {
        "methods": listings.methods,
        "data": lambda: listings.data(data_dir or Path("data")),
        "recipes": listings.recipes,
        "settings": lambda: listings.settings(method),
    }
    if what not in tables:
        raise unknown("list", what, tables)
    stdout.print(tables[what]().rich())


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="Folder of the runs.", show_default="runs/demo-TIME")] = None,
    fold: Annotated[int, typer.Option(help="Which draw of the labelled images.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Watch AggMatch learn digits from one label per class, beside training on the labels alone and its peers."""
    from datetime import datetime

    from aggmatch.console import stdout
    from aggmatch.experiments import demo as experiment

    out = out or Path("runs") / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    if not quiet:
        stdout.print(experiment.INTRODUCTION, highlight=False)
    result = experiment.run(out, fold, lambda run, title: follow_run(run, quiet=quiet, title=title))
    stdout.print(result.rich())
    stdout.print(f"Run folders: {out}", highlight=False, soft_wrap=True)


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Options before the command."""
    if show:
        typer.echo(f"aggmatch {__version__}")
        raise typer.Exit


def main() -> None:
    """Entry point: errors a user can mend are one sentence and exit code 2."""
    import warnings

    warnings.showwarning = lambda message, *_args, **_kwargs: print(f"Warning: {message}", file=sys.stderr)
    try:
        app()
    except AggMatchError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(141)
