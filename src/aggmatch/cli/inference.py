"""Commands that use a trained model: predict, export."""

from pathlib import Path
from typing import Annotated

import typer

from aggmatch.cli.app import AllowCode, Device, Trained, app, gather
from aggmatch.console import say, stdout
from aggmatch.errors import AggMatchError
from aggmatch.storage.files import check_writable, write_output
from aggmatch.tables import Table

FORMATS = (".csv", ".json")


@app.command()
def predict(
    run: Trained,
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders or .zip files of them.")],
    out: Annotated[Path | None, typer.Option(help="Write the table here: FILE.csv or FILE.json.")] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Probabilities of all classes, not only the most probable.")
    ] = False,
    device: Device = None,
    allow_code: AllowCode = None,
) -> None:
    """Predict the classes of new images with a run's model."""
    if out is not None:
        check_out(out, run, FORMATS)

    from aggmatch.data.own.images import image_files
    from aggmatch.inference.model import TrainedModel
    from aggmatch.progress import progress_bar

    model = TrainedModel.load(run, gather(device=device), allow=allow_code or ())
    files: dict[Path, str] = {}
    for path in images:
        if not path.exists():
            raise AggMatchError(f"{path} does not exist. Name image files, or folders or .zip files of them.")
        files |= image_files(path, model.settings.runtime.cache_dir)
    rows = []
    with progress_bar("Predicting", "images") as report:
        for file, probs in model.predict_files(list(files)):
            best = int(probs.argmax())
            numbers = [float(probs[best]), *(probs.tolist() if all_ else [])]
            rows.append([files[file], model.classes[best], *(round(p, 6) for p in numbers)])
            report(len(rows), len(files))
    if not rows:
        raise AggMatchError(f"No image could be read in {', '.join(map(str, images))}.")
    each = [f"p({name})" for name in model.classes] if all_ else []  # a class may be called "file"
    table = Table(["file", "class", "probability", *each], rows)
    if out is None:
        stdout.print(table)
    else:
        text = table.csv() if out.suffix.lower() == ".csv" else table.json() + "\n"
        write_output(out, text.encode(errors="surrogateescape"))  # file names may hold any bytes
        say(f"{len(rows)} of {len(files)} images: {out}")


@app.command()
def export(
    run: Trained,
    out: Annotated[Path | None, typer.Option(help="File to write.", show_default="RUN/model.onnx")] = None,
    allow_code: AllowCode = None,
) -> None:
    """Write a run's model as ONNX: images in, class probabilities out."""
    from aggmatch.inference.export import to_onnx
    from aggmatch.inference.model import TrainedModel

    out = out or run / "model.onnx"
    check_out(out, run, (".onnx",))
    model = TrainedModel.load(run, gather(device="cpu"), allow=allow_code or ())
    write_output(out, to_onnx(model))
    say(
        f"{out}: input `images`, uint8, any number × {model.network.channels} × {model.side} × {model.side}; output "
        f"`probabilities` of {', '.join(model.classes)}."
    )


def check_out(out: Path, run: Path, formats: tuple[str, ...]) -> None:
    """Fail early for a file of another format, one of the run's own files, and one that cannot be written."""
    if out.suffix.lower() not in formats:
        raise AggMatchError(f"--out must end in {' or '.join(formats)}, got {out}.")
    if out.suffix.lower() == ".json" and out.resolve().parent == run.resolve():
        raise AggMatchError(f"--out must not be a JSON file in the run's own folder, got {out}.")
    check_writable(out)
