"""Commands that look at runs: figures, explain, report."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from aggmatch.cli.app import DataDir, Device, Download, Quiet, app, gather, listed
from aggmatch.config import Layer
from aggmatch.errors import AggMatchError
from aggmatch.report import ANALYSES

Runs = Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs.", show_default=False)]


@app.command()
def figures(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="Folder of the files.")] = Path("figures"),
    format_: Annotated[Literal["svg", "png", "pdf"], typer.Option("--format", help="Kind of file.")] = "svg",
    only: Annotated[
        str | None, typer.Option(metavar="NAME,...", help=f"Of {', '.join(ANALYSES)}.", show_default="all")
    ] = None,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = None,
) -> None:
    """Draw what the runs went through: accuracy, pseudo labels, mistakes, attention, features."""
    from aggmatch import report as analysis
    from aggmatch.console import say
    from aggmatch.files import make_folder, write_atomically
    from aggmatch.report.figure import file_bytes
    from aggmatch.runs.stored import read_runs

    names = listed(only) or ANALYSES
    records = read_runs(runs, gather(None, None, data_dir=data_dir, device=device), download=download)
    captions = []
    gaps: dict[str, list[str]] = {}
    for panel in analysis.panels(records, names, missing=lambda name, why: gaps.setdefault(why, []).append(name)):
        path = make_folder(out) / f"{panel.name}.{format_}"
        write_atomically(path, file_bytes(panel, format_))
        captions.append(f"## {path.name}\n\n**{panel.title}.** {panel.caption}\n")
        say(str(path))
    if not captions and gaps:
        raise AggMatchError(f"Nothing could be drawn for {', '.join(names)}: {' '.join(gaps)}")
    if not captions:
        raise AggMatchError(
            f"These runs hold nothing to draw for: {', '.join(names)}. docs/analysis.md says what each needs."
        )
    write_atomically(out / "captions.md", "\n".join(captions).encode())
    say(str(out / "captions.md"))
    for why, parts in gaps.items():
        say(f"Left out of {', '.join(parts)}: {why}", error=True)


@app.command()
def explain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of an AggMatch run.", show_default=False)],
    images: Annotated[
        list[str],
        typer.Argument(metavar="IMAGE", help="Training images: their numbers, or files.", show_default=False),
    ],
    snapshot: Annotated[int | None, typer.Option(metavar="STEP", help="Snapshot.", show_default="the last")] = None,
    top: Annotated[int, typer.Option(help="Queue entries shown, those with most weight.", min=1)] = 8,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Picture: .png, .svg or .pdf.")] = None,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = None,
) -> None:
    """Why this label? Show the queue entries that made the pseudo label of a training image, and the votes."""
    kind = out.suffix.removeprefix(".") if out else ""
    if out and kind not in ("png", "svg", "pdf"):
        raise AggMatchError(f"--out must end in .png, .svg or .pdf, got {out}.")

    from aggmatch.console import say, stdout
    from aggmatch.files import make_folder, write_atomically
    from aggmatch.report import explain as analysis
    from aggmatch.report.figure import file_bytes
    from aggmatch.runs.stored import read_runs

    (record,) = read_runs([run], gather(None, None, data_dir=data_dir, device=device), download=download)
    numbers = [analysis.image_number(record.data(), word) for word in images]
    explanations = analysis.explain_run(record, numbers, step=snapshot, top=top)
    for explanation in explanations:
        stdout.print(analysis.table(explanation, record.data()).rich())
    if out:
        make_folder(out.parent)
        write_atomically(out, file_bytes(analysis.panel(record, explanations), kind))
        say(str(out))


@app.command()
def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page.")] = Path("report.html"),
    watch: Annotated[bool, typer.Option("--watch", help="Rewrite it as the runs train, until they are done.")] = False,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Write one page on what training did and how far to trust it; several runs are compared."""
    if out.is_dir():
        raise AggMatchError(f"--out must name a file, got the folder {out}. For example: --out {out / 'report.html'}")
    if device:
        from aggmatch.devices import choose_device

        choose_device(device)  # a mistake ends it here; without networks to run nothing would notice
    changes = gather(None, None, data_dir=data_dir, device=device)
    write_report(runs, out, changes, watch=watch, download=download, quiet=quiet)


def write_report(
    runs: list[Path], out: Path, changes: list[Layer], *, watch: bool = False, download: bool = False, quiet: bool
) -> None:
    """Write a report, telling on standard error what is being done, and say where it lies."""
    from aggmatch.console import say
    from aggmatch.files import check_writable, make_folder, write_atomically
    from aggmatch.report.page import page
    from aggmatch.report.watch import watch as keep_writing
    from aggmatch.runs.stored import read_runs

    tell = partial(say, error=True, quiet=quiet)
    records = read_runs(runs, changes, download=download)
    make_folder(out.parent)
    check_writable(out)
    if watch:
        tell(f"Watching; open {out} in a browser. Ctrl-C stops.")
        keep_writing(runs, out, changes=changes, download=download, tell=tell)
    else:
        write_atomically(out, page(records, tell=tell).encode())
    say(f"Report: {out}", quiet=quiet)
