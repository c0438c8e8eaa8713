"""Commands for the labels of your own images: suggest, doubts."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aggmatch.cli.app import AllowCode, DataDir, Device, Download, Quiet, Set, app, gather
from aggmatch.console import say, stdout
from aggmatch.errors import AggMatchError
from aggmatch.storage.files import check_writable, write_output
from aggmatch.tables import Table, plural

if TYPE_CHECKING:
    from aggmatch.report.contact_sheet import Picture

LabelsFile = Annotated[
    Path | None, typer.Option(help="Table of the labels as they are now: CSV with columns file, label.")
]
SHOWN = 20
"""Doubts that are printed; all are in the files."""


@app.command()
def suggest(
    source: Annotated[Path, typer.Argument(metavar="FOLDER|RUN", help="A folder of images, or the folder of a run.")],
    n: Annotated[int, typer.Option("--n", "-n", help="Number of images.", min=1)] = 20,
    out: Annotated[Path, typer.Option(help="Write OUT.csv to fill in, and OUT.html to look at.")] = Path("suggestions"),
    labels_file: LabelsFile = None,
    set_: Set = None,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = None,
    allow_code: AllowCode = None,
    quiet: Quiet = False,
) -> None:
    """Choose the images that teach most if you label them next: before any training, or after a run."""
    table, page = out.with_name(out.name + ".csv"), out.with_name(out.name + ".html")
    if table.exists():
        raise AggMatchError(f"{table} exists already and may hold labels. Choose another --out.")
    for file in (table, page):
        check_writable(file)

    from aggmatch.data.own.images import original_file
    from aggmatch.features import active
    from aggmatch.inference import pool as pools
    from aggmatch.report.to_label import picture
    from aggmatch.runs.folder import RunFolder
    from aggmatch.settings import resolve

    is_run = RunFolder(source).holds_run
    if is_run:
        places = gather(None, set_, data_dir=data_dir, device=device)
        pool = pools.pool_of_run(source, places, labels_file=labels_file, allow=allow_code or (), download=download)
    else:
        if not source.exists():
            raise AggMatchError(f"There is no {source}. Name a folder of images, or the folder of a run.")
        given = labels_file and labels_file.resolve()
        pool = pools.pool_of_folder(
            resolve(gather(None, set_, data=str(source.resolve()), labels_file=given, device=device))
        )
    chosen = active.suggest(pool.features, pool.labeled.tolist(), n, probs_NY=pool.probs)
    if not chosen:
        raise AggMatchError(
            f"All {plural(len(pool.images), 'image')} of {pool.settings.data.name} have a label. If its folders are "
            f"not classes, name a table of labels: --labels-file FILE.csv, which may hold just the line file,label"
        )
    known = pool.known()
    rows = [[pool.images.call(position), ""] for position in chosen] + [[name, label] for name, label in known.items()]
    pictures = [picture(pool, position) for position in chosen]
    title = f"{plural(len(chosen), 'image')} to label next"
    lead = "The first one teaches most."
    place, first = pool.settings, pool.images.call(chosen[0])
    in_files = original_file(place.data.name, first, place.runtime.cache_dir) is not None  # which a table can label
    if in_files:
        lead += f" Write their classes into {table.name}, which has the labels of the others."
    write(table, Table(["file", "label"], rows), page, title, lead, pictures)
    if not in_files:
        say(f"{title}: {page} shows them; also in {table}.", quiet=quiet)
        return
    say(f"{title}: {page} shows them. Fill in {table}, then:", quiet=quiet)
    words = ["--from", str(source)] if is_run else [str(source)]
    say(f"  {shlex.join(['aggmatch', 'train', *words, '--labels-file', str(table)])}", quiet=quiet)


@app.command()
def doubts(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    out: Annotated[Path, typer.Option(help="Write OUT.csv and OUT.html.")] = Path("doubts"),
    labels_file: LabelsFile = None,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = None,
    allow_code: AllowCode = None,
    quiet: Quiet = False,
) -> None:
    """Find given labels that the other images contradict, most suspicious first, with the label they would give."""
    table, page = out.with_name(out.name + ".csv"), out.with_name(out.name + ".html")
    for file in (table, page):
        check_writable(file)

    from aggmatch.features.active import find_doubts
    from aggmatch.inference.pool import pool_of_run
    from aggmatch.report.to_label import picture

    places = gather(data_dir=data_dir, device=device)
    pool = pool_of_run(run, places, labels_file=labels_file, allow=allow_code or (), download=download, early=True)
    found = find_doubts(pool.features, pool.labeled, pool.labels, pool.probs)
    if not found:
        say(f"None of {plural(len(pool.labels), 'label')} is contradicted by the other images.")
        return
    columns = ["file", "label", "suggested", "score"]
    rows = [
        [pool.images.call(doubt.index), pool.classes[doubt.given], pool.classes[doubt.suggested], round(doubt.score, 3)]
        for doubt in found
    ]
    pictures = [picture(pool, doubt.index, f"{row[1]} → {row[2]}?") for doubt, row in zip(found, rows, strict=True)]
    title = f"{len(found)} of {plural(len(pool.labels), 'label')} may be wrong"
    write(
        table,
        Table(columns, rows),
        page,
        title,
        "Below each image its label, then what the other images say. The most suspicious ones come first: look at them "
        "from the start, and stop when most labels are right.",
        pictures,
    )
    stdout.print(Table(columns, rows[:SHOWN]))
    say(f"{title}: {page} shows them; also in {table}.", quiet=quiet)


def write(table: Path, content: "Table", page: Path, title: str, lead: str, pictures: "Sequence[Picture]") -> None:
    """Write a table and the contact sheet next to it."""
    from aggmatch.report.contact_sheet import contact_sheet

    write_output(table, content.csv().encode(errors="surrogateescape"))
    write_output(page, contact_sheet(title, lead, pictures).encode(errors="surrogateescape"))
