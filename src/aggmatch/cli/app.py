"""The application and what its commands share: options with the same meaning everywhere, the display of a run."""

import os
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from aggmatch import __version__, console
from aggmatch.config import Layer, read_assignment, read_file
from aggmatch.errors import AggMatchError
from aggmatch.registry import PARTS, refuse_code

if TYPE_CHECKING:
    from aggmatch.training.run import Run

app = typer.Typer(
    help="Image classification with very few labels: AggMatch and other methods, trained by the same loop.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
SPINS = "3000"
"""How often a thread looks whether it may go on before it sleeps: some microseconds."""

Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; repeatable.")]
Data = Annotated[
    str | None,
    typer.Argument(help="See `aggmatch list data`; or a folder, .zip or .npz of images.", show_default="digits"),
]
Labels = Annotated[
    int | None, typer.Option(help="Labelled images in total, equal per class.", show_default="the recipe's")
]
Steps = Annotated[int | None, typer.Option(help="Training steps.", show_default="the recipe's")]
Recipe = Annotated[str | None, typer.Option(help="See `aggmatch list recipes`.", show_default="the method's")]
Config = Annotated[Path | None, typer.Option(help="Settings from a TOML file or a run's config.json.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of the downloaded data sets.", show_default="data")]
Download = Annotated[bool, typer.Option("--download", help="Fetch the data set's files if they are missing.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:N or auto.", show_default="auto")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress: print tables and errors only.")]
Trained = Annotated[Path, typer.Argument(help="Folder of a run. Of an unfinished one, the newest checkpoint is used.")]
AllowCode = Annotated[
    list[str] | None,
    typer.Option("--allow-code", metavar="FILE.py:NAME", help="Run this code, which the run folder names; repeatable."),
]

KEYS = {
    "data": "data.name",
    "method": "method.name",
    "labels": "data.labels",
    "fold": "data.fold",
    "recipe": "recipe",
    "steps": "train.steps",
    "split": "data.split",
    "labels_file": "data.labels_file",
    "data_dir": "runtime.data_dir",
    "device": "runtime.device",
    "tensorboard": "runtime.tensorboard",
}
"""Option of the command line → the setting it stands for."""


def gather(
    config: Path | None = None, assignments: list[str] | None = None, allow: list[str] | None = None, **options: Any
) -> list[Layer]:
    """Layers of settings, later ones winning: the file, then the options that were given, then `--set`.

    A JSON file is the configuration of a run, perhaps somebody else's: code that it names must be in `allow`.
    """
    layers = [read_file(config)] if config else []
    if config and Path(layers[0].source).suffix != ".toml":  # of a run folder, its config.json was read
        names = [value for key, value in layers[0].values.items() if key in PARTS and isinstance(value, str)]
        refuse_code(names, allow or (), layers[0].source)
    for name, value in options.items():
        if value is not None:
            if name == "data" and Path(value).exists():
                from aggmatch.data.registry import locate, name_clash  # a slow import that only own images need

                if clash := name_clash(value):
                    warnings.warn(clash, stacklevel=2)
                value = locate(value)
            source = f"{'DATA' if name == 'data' else '--' + name.replace('_', '-')} {value}"
            layers.append(Layer(source, {KEYS[name]: str(value) if isinstance(value, Path) else value}))
    return layers + [read_assignment(text) for text in assignments or []]


def listed(text: str | None) -> list[str]:
    """The names in a comma-separated text; none without a text. An empty text, as of an unset variable, is no name."""
    return [name.strip() for name in text.split(",")] if text is not None else []


def follow_run(run: "Run", title: str = "", *, quiet: bool, again: str = "") -> None:
    """Train with a live display. A signal prints how to continue and ends with the usual exit code.

    title: shown next to the progress bar. again: the command that continues, if it is not `train --resume`.
    """
    from aggmatch.training.run import Stopped

    try:
        console.follow(run, title=title, quiet=quiet)
    except Stopped as stop:
        alone = shlex.join(["aggmatch", "train", "--resume", "--out", str(run.folder.path)])
        again = again or ("the same command with --resume" if run.processes.divides else alone)
        console.say(f"Stopped and saved at step {stop.step}. Continue: {again}", error=True)
        raise typer.Exit(128 + stop.signal_number) from None


@contextmanager
def printing(wanted: bool) -> Iterator[None]:
    """Within, nothing but errors is printed unless it is wanted: one of several processes speaks for all."""
    if wanted:
        yield
        return
    before = console.stdout.quiet, console.stderr.quiet
    console.stdout.quiet = console.stderr.quiet = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        console.stdout.quiet, console.stderr.quiet = before


@app.callback(invoke_without_command=True)
def version(
    context: typer.Context,
    show: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Options before the command."""
    if show:
        typer.echo(f"aggmatch {__version__}")
        raise typer.Exit
    if context.invoked_subcommand not in (None, "train") and os.environ.get("WORLD_SIZE", "1") != "1":
        from aggmatch.distributed import under_torchrun  # a slow import

        if under_torchrun():
            name = context.invoked_subcommand
            raise AggMatchError(f"torchrun can start several processes of `train` only. Run `{name}` without it.")


def main() -> None:
    """Run the command line; an error that the user can fix is one sentence and exit code 2, a warning one line."""
    wait_briefly()
    console.print_plainly(sys.stdout, sys.stderr)
    shown = set[str]()

    def warn(message: object, *_args: object, **_kwargs: object) -> None:
        if str(message) not in shown:  # a command may read the same images twice
            shown.add(str(message))
            console.complain(f"Warning: {message}")

    warnings.showwarning = warn
    try:
        app()
    except AggMatchError as error:
        fail(error.with_options)
    except OSError as error:  # a path without permission, a full disk behind the output
        fail(f"Cannot use {error.filename or 'the output'}: {error.strerror}.")
    except RuntimeError as error:
        if not lacks_memory(error):
            raise
        fail("Out of memory. Try a smaller train.batch, method.slots or model.name (--set ...).")


def wait_briefly() -> None:
    """Let threads that wait for each other sleep soon, unless the user decides; torch's OpenMP reads it when it loads.

    By default they keep a core busy while they wait. Beside other work, a step on a CPU then takes twice as long.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


def fail(message: str) -> NoReturn:
    """Print an error and exit with code 2."""
    console.complain(f"Error: {message}")
    sys.exit(2)


def lacks_memory(error: RuntimeError) -> bool:
    """Whether torch failed to allocate memory, on any device, or was asked for more than a machine can have."""
    sentences = ("can't allocate memory", "Storage size calculation overflowed")
    return type(error).__name__ == "OutOfMemoryError" or any(sentence in str(error) for sentence in sentences)
