"""Commands that show stored runs: figures, explain, report."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from aggmatch.cli.app import AllowCode, DataDir, Device, Download, Quiet, app, gather, listed
from aggmatch.console import say, stdout
from aggmatch.errors import AggMatchError
from aggmatch.storage.files import check_writable, make_folder, write_output

Runs = Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs.", show_default=False)]


@app.command()
def figures(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="Folder of the files.")] = Path("figures"),
    format_: Annotated[Literal["svg", "png", "pdf"], typer.Option("--format", help="File format.")] = "svg",
    only: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="Figures, or chapters of them such as training or attention; see `aggmatch list figures`.",
            show_default="all",
        ),
    ] = None,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = None,
    allow_code: AllowCode = None,
) -> None:
    """Draw figures of runs: accuracy, pseudo labels, mistakes, attention, features.

    For the figures of the paper as printed, train with --set runtime.snapshot_steps='[1000, 4000, 10000, 40000]'; the
    page "Figures and explanations" of the documentation names the figure for each of them.
    """
    from aggmatch.report.figure import files
    from aggmatch.report.figures import draw, select
    from aggmatch.runs.stored import read_runs

    changes = gather(data_dir=data_dir, device=device)
    stored = read_runs(runs, changes, allow=allow_code or (), download=download)
    names, captions = listed(only) or None, []
    reasons: dict[str, list[str]] = {}
    for _, panel in draw(stored, names, missing=lambda name, why: reasons.setdefault(why, []).append(name)):
        written = []
        for name, content in files(panel, format_):
            write_output(out / name, content)
            written.append(name)
            say(str(out / name))
        captions.append(f"## {', '.join(written)}\n\n**{panel.title}.** {panel.caption}\n")
    if not captions:
        wanted = ", ".join(names or ["all figures"])
        needs = dict.fromkeys(figure.needs for figure in select(names).values())
        why = " ".join(reasons) or f"these runs do not have {' or '.join(needs)}."
        raise AggMatchError(f"Nothing could be drawn for {wanted}: {why}")
    write_output(out / "captions.md", "\n".join(captions).encode())
    say(str(out / "captions.md"))
    for why, parts in reasons.items():
        say(f"Left out of {', '.join(dict.fromkeys(parts))}: {why}", error=True)


@app.command()
def explain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of an AggMatch run.", show_default=False)],
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGE", help="Training images: their numbers, or files.", show_default=False)
    ],
    snapshot: Annotated[int | None, typer.Option(metavar="STEP", help="Snapshot.", show_default="the last")] = None,
    top: Annotated[int, typer.Option(help="Number of queue entries shown, those with most weight.", min=1)] = 8,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Picture: .png, .svg or .pdf; numbered if there are several.")
    ] = None,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = None,
    allow_code: AllowCode = None,
) -> None:
    """Why this label? Show the queue entries that made the pseudo label of a training image, and the votes."""
    kind = out.suffix.removeprefix(".") if out else ""
    if out and kind not in ("png", "svg", "pdf"):
        raise AggMatchError(f"--out must end in .png, .svg or .pdf, got {out}.")

    from aggmatch.report.explain import explain_run, image_number, panel, table
    from aggmatch.report.figure import files
    from aggmatch.runs.stored import read_runs

    changes = gather(data_dir=data_dir, device=device)
    (stored,) = read_runs([run], changes, allow=allow_code or (), download=download)
    if out:
        check_writable(out)
    numbers = [image_number(stored.data(), word) for word in images]
    explanations = explain_run(stored, numbers, step=snapshot, top=top)
    for explanation in explanations:
        stdout.print(table(explanation, stored.data()))
    if out:
        pictures = [content for _, content in files(panel(stored, explanations), kind)]
        for number, content in enumerate(pictures, 1):
            path = out.with_stem(f"{out.stem}-{number}") if len(pictures) > 1 else out
            write_output(path, content)
            say(str(path))


@app.command()
def report(
    runs: Runs,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The page.", show_default="RUN/report.html; of several runs, report.html"),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Rewrite it while the runs train, until they end.")] = False,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = None,
    allow_code: AllowCode = None,
    quiet: Quiet = False,
) -> None:
    """Write one page on what training did and how far to trust it; several runs are compared."""
    out = out or (runs[0] if len(runs) == 1 else Path()) / "report.html"
    if out.is_dir():
        raise AggMatchError(f"--out must name a file, got the folder {out}. For example: --out {out / 'report.html'}")

    from aggmatch.report import page
    from aggmatch.runs.stored import read_runs

    changes, allow = gather(data_dir=data_dir, device=device), allow_code or ()
    progress = partial(say, error=True, quiet=quiet)
    stored = read_runs(runs, changes, allow=allow, download=download)
    check_writable(out)
    if watch:
        make_folder(out.parent)
        progress(f"Watching; open {out} in a browser. Ctrl-C stops.")
        page.watch(runs, out, changes=changes, allow=allow, download=download, progress=progress)
    else:
        write_output(out, page.page(stored, progress=progress).encode())
    say(f"Report: {out}", quiet=quiet)
