"""Downloads: tables of labels and predictions, the model, and files sorted into folders of classes."""

import csv
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from aggmatch.data.own.decode import printable
from aggmatch.errors import AggMatchError
from aggmatch.page.lists import Guess
from aggmatch.page.project import Project
from aggmatch.registry import is_code
from aggmatch.settings import parts_named

UNSAFE = re.compile(r'[\\/:*?"<>|\x00-\x1f\x7f]')
"""Characters that the name of a folder must not have on some system."""


def labels_csv(project: Project) -> bytes:
    """Return the labels as CSV with the columns file and label, which `--labels-file` reads."""
    return table(["file", "label"], project.lists.labels().items())


def predictions_csv(project: Project) -> bytes:
    """Return a class and its probability for each image, and whether a person gave it."""
    given = project.lists.labels()
    rows = [
        (name, guess.name, guess.prob, "given" if name in given else "predicted")
        for name, guess in found(project).items()
    ]
    return table(["file", "class", "probability", "source"], rows)


def found(project: Project) -> dict[str, Guess]:
    """Return the classes of all images; raise `AggMatchError` without a model."""
    if project.rounds.result is None:
        raise AggMatchError("There are no predictions yet. Train a model first.")
    return project.lists.predictions()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    """Return rows as CSV. File names may hold any bytes."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    writer.writerow(columns)
    writer.writerows(rows)
    return stream.getvalue().encode(errors="surrogateescape")


def onnx_file(project: Project) -> Path:
    """Return the model of the last round as an ONNX file; make it if there is none. Takes some seconds."""
    done = project.rounds.done
    if done is None:
        raise AggMatchError("There is no model yet. Train one first.")
    path = done.path / "model.onnx"
    if not path.exists():
        parts = [name for _, values in project.rounds.changes for name in parts_named(values) if is_code(name)]
        allowed = [word for name in parts for word in ("--allow-code", name)]
        command = [sys.executable, "-m", "aggmatch", "export", str(done.run), "--out", str(path), *allowed]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise AggMatchError(ended.stderr.strip().removeprefix("Error: ") or "The export failed.")
    return path


def sort_files(project: Project, what: str, how: str) -> dict[str, object]:
    """Copy or link image files into folders of classes, in a new folder. The files of the user stay as they are.

    what: `labels` for given labels, or `predictions` for all images. how: `copy`, or `link` for symbolic links.
    Returns the folder and the number of files. Raises `AggMatchError` if that is not possible.
    """
    if what not in ("labels", "predictions") or how not in ("copy", "link"):
        raise AggMatchError(f"Files are sorted by labels or predictions, as copy or link, got {what} and {how}.")
    classes: Mapping[str, str] = project.lists.labels()
    if what == "predictions":
        classes = {name: guess.name for name, guess in found(project).items()}
    if not classes:
        raise AggMatchError("There are no labels yet.")
    target = new_folder(project.out / "sorted")
    folders = folder_names(sorted(set(classes.values())))
    done = missing = 0
    for name, label in classes.items():
        source, folder = project.root / name, target / folders[label]
        try:
            folder.mkdir(exist_ok=True)
            place = free_name(folder, Path(name).name)
            if how == "link":
                place.symlink_to(source)
            else:
                shutil.copy2(source, place)
            done += 1
        except FileNotFoundError:
            missing += 1
        except OSError as error:
            raise AggMatchError(
                f"Stopped after {done} of {len(classes)} files: cannot write {printable(place)}: {error.strerror}. "
                f"Your own files are as they were."
            ) from error
    return {"folder": str(target), "files": done, "missing": missing}


def new_folder(wanted: Path) -> Path:
    """Make and return a folder with this name, or with a number at its end if that exists."""
    for number in range(1, 10_000):
        path = wanted.with_name(f"{wanted.name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise AggMatchError(f"Cannot make {path}: {error.strerror}.") from error
        return path
    raise AggMatchError(f"There are too many folders like {wanted}.")


def folder_names(classes: Sequence[str]) -> dict[str, str]:
    """Return class → name of its folder, which is safe and differs from the others in more than upper case."""
    names: dict[str, str] = {}
    for name in classes:
        plain = UNSAFE.sub("_", name).strip(" .") or "_"
        while len(os.fsencode(plain)) > 200:
            plain = plain[:-1]
        taken = {other.lower() for other in names.values()}
        unique, number = plain, 2
        while unique.lower() in taken:
            unique, number = f"{plain}-{number}", number + 1
        names[name] = unique
    return names


def free_name(folder: Path, name: str) -> Path:
    """Return a path in a folder that does not exist yet: files of several folders may have the same name."""
    path, number = folder / name, 2
    while os.path.lexists(path):
        path, number = folder / f"{Path(name).stem}-{number}{Path(name).suffix}", number + 1
    return path
