"""The command bench: what a training step costs."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from aggmatch.cli.app import Device, Quiet, Set, app, gather, listed
from aggmatch.config import Layer
from aggmatch.console import say, stdout
from aggmatch.errors import AggMatchError
from aggmatch.storage.files import write_atomically


@app.command()
def bench(
    data: Annotated[str, typer.Argument(help="Data set whose recipe is used; its files are not needed.")] = "cifar10",
    method: Annotated[str, typer.Option(metavar="NAME,...", help="Comma-separated methods, or all.")] = "aggmatch",
    steps: Annotated[
        int | None, typer.Option(help="Steps to time.", show_default="500 on CUDA, elsewhere what fits in 5 s")
    ] = None,
    stages: Annotated[bool, typer.Option("--stages/--no-stages", help="Time the parts of the step too.")] = True,
    grow: Annotated[
        list[str] | None, typer.Option(metavar="KEY=V1,V2,...", help="Time the step as a setting grows; repeatable.")
    ] = None,
    aggregation: Annotated[
        bool, typer.Option("--aggregation", help="Time AggMatch's aggregation alone instead, in the paper's shapes.")
    ] = False,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write all numbers to this file.")] = None,
    set_: Set = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Measure what a training step costs on this machine, and compare it with the lower bound of the hardware."""
    if steps is not None and steps < 1:
        raise AggMatchError(f"--steps must be at least 1, got {steps}.")
    if json is not None and not json.absolute().parent.is_dir():
        raise AggMatchError(f"Cannot write {json}: there is no folder {json.parent}. Make it first.")
    if json is not None and json.is_dir():
        raise AggMatchError(
            f"--json must name a file, got the folder {json}. For example: --json {json / 'bench.json'}"
        )
    layers = [Layer("the command", {"recipe": "paper"}), *gather(assignments=set_, data=data, device=device)]

    from json import dumps

    from aggmatch.bench import report
    from aggmatch.bench.timing import Effort
    from aggmatch.devices import choose_device
    from aggmatch.methods import METHODS

    names = METHODS.names() if method == "all" else listed(method)
    plan = report.plan(names, layers, [report.Growth.parse(text) for text in grow or []])
    progress = partial(say, error=True, quiet=quiet)
    effort = Effort(choose_device(plan.methods[names[0]].runtime.device), steps)
    measured = (
        report.measure_kernels(effort, progress)
        if aggregation
        else report.measure_steps(plan, effort, stages=stages, tell=progress)
    )
    if json is not None:
        write_atomically(json, (dumps(measured, indent=2, ensure_ascii=False) + "\n").encode())
    for table in report.tables(measured):
        stdout.print(table)
    if json is not None:
        say(f"Also in {json}")
