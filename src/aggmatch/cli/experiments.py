"""Commands that train several runs and put them next to each other: compare, demo."""

from pathlib import Path
from typing import Annotated

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
