"""Commands that open a page or a port on this machine: label, serve."""

from pathlib import Path
from typing import Annotated

import typer

from aggmatch.cli.app import AllowCode, Device, Set, app, gather
from aggmatch.config import merge
from aggmatch.console import say
from aggmatch.errors import AggMatchError

Host = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all networks.")]


@app.command()
def label(
    folder: Annotated[Path, typer.Argument(help="Folder of images.")],
    labels_file: Annotated[
        Path | None, typer.Option(help="Where labels are saved.", show_default="FOLDER/labels.jsonl")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the trained models.", show_default="runs/label-FOLDER")
    ] = None,
    train_every: Annotated[
        int, typer.Option(help="Number of new labels after which training starts; 0: only by the button.", min=0)
    ] = 20,
    host: Host = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(help="Port to listen on.", min=0, max=65535, show_default="8765 or the next free one")
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the page in a browser.")] = False,
    set_: Set = None,
    device: Device = None,
) -> None:
    """Label, train and review images of a folder, on a page in your browser. Nothing leaves this machine."""
    layers = gather(assignments=set_, device=device)
    try:
        from aggmatch.page.listen import listen, open_browser
        from aggmatch.page.security import Access
        from aggmatch.page.server import make_app
    except ImportError as error:
        raise missing(error) from None
    from aggmatch.page.project import Project

    if labels_file is not None and labels_file.suffix != ".jsonl":
        raise AggMatchError(f"--labels-file must end in .jsonl, got {labels_file}.")
    changes = [(layer.source, dict(layer.values)) for layer in layers]
    cache_dir = merge(layers)[0].get("runtime", {}).get("cache_dir")
    out = out or default_out(folder)
    if out.resolve().is_relative_to(folder.resolve()):
        raise AggMatchError(f"{out} is inside the folder of images, where it would be a class. Choose another --out.")
    project = Project(
        folder, out, labels_file=labels_file, cache_dir=cache_dir, changes=changes, train_every=train_every
    )
    access = Access(host)

    def ready(chosen: int) -> None:
        say(f"{len(project.index.names):,} images, {len(project.notes.state.labels):,} labels in {project.notes.path}")
        say(f"Label page: {access.link(chosen)}   (Ctrl-C stops it; every label is saved at once)")
        if not no_open:
            open_browser(access.link(chosen))
        if not project.rounds.result:
            project.rounds.prepare(list(project.index.names.values()))

    try:
        listen(make_app(project, access), host, port, ready)
    finally:
        project.rounds.stop()


@app.command()
def serve(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    host: Host = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(help="Port to listen on.", min=0, max=65535, show_default="8000 or the next free one")
    ] = None,
    most_images: Annotated[int, typer.Option(help="Images of one request.", min=1)] = 64,
    most_megabytes: Annotated[int, typer.Option(help="Megabytes of one request.", min=1)] = 32,
    batch: Annotated[int, typer.Option(help="Images that are predicted together.", min=1)] = 32,
    device: Device = None,
    allow_code: AllowCode = None,
) -> None:
    """Serve a finished run's model over HTTP: POST images to /predict. See also /classes, /healthz, /openapi.json."""
    try:
        from aggmatch.page.listen import listen
        from aggmatch.page.serving.service import load_engine, make_app
    except ImportError as error:
        raise missing(error) from None
    engine = load_engine(run, gather(device=device), allow_code or ())

    def ready(chosen: int) -> None:
        say(f"{', '.join(engine.classes)}: http://{host}:{chosen}/predict   (Ctrl-C stops it)")
        if engine.name == "torch":
            say(f"On a CPU it is faster after: aggmatch export {run}", error=True)

    application = make_app(engine, most_images=most_images, most_megabytes=most_megabytes, batch=batch)
    listen(application, host, port, ready, usual=8000)


def default_out(folder: Path) -> Path:
    """Return the folder of the models: in `runs`, or beside the images if that is among them."""
    root, out = folder.resolve(), Path("runs") / f"label-{folder.resolve().name}"
    return root.with_name(f"{root.name}-models") if out.resolve().is_relative_to(root) else out


def missing(error: ImportError) -> AggMatchError:
    """Return the error for a package that is not installed."""
    return AggMatchError(f"This needs {error.name}: pip install 'aggmatch[page]'.")
