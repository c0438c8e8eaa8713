"""Where the runs of an experiment train: options of compare and reproduce, and the command of a task of an array."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aggmatch.cli.app import AllowCode, Download, Quiet, app, follow_run
from aggmatch.console import say
from aggmatch.errors import AggMatchError, unknown

if TYPE_CHECKING:
    from aggmatch.experiments.engines import Engine
    from aggmatch.experiments.planned import PlannedRun

AGAIN = "the same command"
"""How to continue."""
PLACES = ("local", "ray", "slurm")
On = Annotated[
    str, typer.Option("--on", metavar="local|ray|slurm", help="Train here, on a Ray cluster, or as a Slurm array.")
]
AtOnce = Annotated[
    int | None,
    typer.Option(
        help="Runs to train at the same time, each in its own process; with ray, those that share a GPU.",
        min=1,
        show_default="1; slurm: all",
    ),
]
Address = Annotated[
    str | None, typer.Option(help="The Ray cluster: HOST:PORT, auto or local.", show_default="RAY_ADDRESS or local")
]
SlurmOption = Annotated[
    list[str] | None,
    typer.Option("--slurm", metavar="OPTION", help="Option of sbatch, such as time=24:00:00; repeatable."),
]
Submit = Annotated[bool, typer.Option("--submit", help="With --on slurm: submit the script too.")]


@dataclass(frozen=True)
class Place:
    """The options that choose where runs train; checked before anything is planned."""

    on: str = "local"
    at_once: int | None = None
    address: str | None = None
    slurm: Sequence[str] = ()
    submit: bool = False

    def __post_init__(self) -> None:
        if self.on not in PLACES:
            raise unknown("place", self.on, PLACES)
        given = {
            "--address": (self.address, "ray"),
            "--slurm": (self.slurm, "slurm"),
            "--submit": (self.submit, "slurm"),
        }
        for option, (value, place) in given.items():
            if value and self.on != place:
                raise AggMatchError(f"{option} needs --on {place}, got --on {self.on}.")

    def engine(self, out: Path, *, quiet: bool, download: bool) -> "Engine":
        """Return the engine for runs in the folder `out`. download: whether they fetch missing files of their data."""
        match self.on:
            case "ray":
                from aggmatch.experiments.engines.on_ray import OnRay

                return OnRay(self.address, self.at_once or 1, download=download)
            case "slurm":
                from aggmatch.experiments.engines.slurm import Slurm

                return Slurm(out, self.slurm, self.at_once, submit=self.submit, download=download)
            case _:
                from aggmatch.experiments.engines.local import InParallel, InTurn

                if self.at_once and self.at_once > 1:
                    return InParallel(self.at_once)
                return InTurn(partial(follow_run, quiet=quiet, again=AGAIN))


def train_all(runs: "Sequence[PlannedRun]", engine: "Engine", *, quiet: bool, again: str = AGAIN) -> int:
    """Train the unfinished runs and return how many failed; a signal ends the command with its usual exit code.

    again: how to continue after a signal.
    """
    failed = 0
    for failure in engine.train(runs, quiet=quiet):
        failed += 1
        say(f"{failure.run.title} failed: {failure.reason}", error=True)
    if engine.stopped_by is not None:
        say(f"Stopped and saved. Continue: {again}", error=True)
        raise typer.Exit(128 + engine.stopped_by)
    return failed


def raise_failed(failed: int, runs: int, again: str = AGAIN) -> None:
    """End the command with an error if some of its runs failed."""
    if failed:
        raise AggMatchError(f"{failed} of {runs} runs failed, see above. Try them again: {again}")


@app.command(hidden=True)
def planned(
    plan: Annotated[Path, typer.Argument(help="A plan that `--on slurm` has written.")],
    number: Annotated[int, typer.Option(help="Which run of the plan, from 0 on.")],
    download: Download = False,
    allow_code: AllowCode = None,
    quiet: Quiet = False,
) -> None:
    """Train one run of a plan to its end; resume it if it was started. Tasks of a Slurm array call this."""
    from aggmatch.experiments.engines.slurm import read_plan

    run = read_plan(plan, number, allow_code or ())
    run.complete(partial(follow_run, quiet=quiet, again=AGAIN), download=download)
    say(f"{run.title} is finished: {run.path}", quiet=quiet)
