"""Sorts the files of a folder of images into labelled, unlabelled and test images, by folders or by a table of labels.

`FOLDER/CLASS/...` holds the labelled images of a class and `FOLDER/unlabeled/...` the images without a label. Both may
also be in `FOLDER/train`. `FOLDER/test/CLASS/...` holds the test images and may be missing. Images may be in
subfolders of any depth, and have any size and any common format. With a table of labels, the folders may be any:
only `FOLDER/test` keeps its meaning.
"""

import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from aggmatch.data.images import UNKNOWN
from aggmatch.data.own.decode import SUFFIXES, UNSUPPORTED, printable
from aggmatch.data.own.labels_file import labels_of, read_labels
from aggmatch.errors import AggMatchError
from aggmatch.tables import plural

UNLABELED, TRAIN, TEST = ("unlabeled", "unlabelled"), ("train",), ("test", "val", "valid", "validation")
"""Folder names that are not classes, in upper or lower case. The first of TEST that exists holds the test images."""
TABLE, EVENTS = "labels.csv", "labels.jsonl"
"""The table of labels of a folder that has no folders of classes; the second is the log of `aggmatch label`."""


class Labeled(NamedTuple):
    """A file and its class number, or −1."""

    file: Path
    label: int


class Layout(NamedTuple):
    """What the files of a folder are."""

    root: Path
    """The folder that names of training images are relative to when test images are chosen."""
    classes: tuple[str, ...]
    train: list[Labeled]
    """Training images, and if `test` is empty also those that become test images."""
    test: list[Labeled]


# Files ------------------------------------------------------------------------------------------------------------


def find_images(folder: Path) -> list[Path]:
    """Return the image files in a folder and its subfolders, sorted; hidden files are left out.

    Links to files are followed. Links to folders are not, because they may form a cycle.
    """

    def fail(error: OSError) -> None:
        raise error

    images, unsupported = [], []
    for place, folders, files in os.walk(folder, onerror=fail):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        visible = [Path(place, name) for name in files if not name.startswith(".")]
        images += [file for file in visible if file.suffix.lower() in SUFFIXES]
        unsupported += [file for file in visible if file.suffix.lower() in UNSUPPORTED]
    if unsupported:
        count, example = plural(len(unsupported), "photo"), printable(min(unsupported))
        warnings.warn(f"Left out: {count} in {folder}, such as {example}. Convert them to JPEG.", stacklevel=2)
    return sorted(images)


def name_below(folder: Path, file: Path) -> str:
    """Return the path of a file relative to a folder, in printable characters."""
    return printable(file.relative_to(folder).as_posix())


def subfolders(folder: Path) -> list[Path]:
    """Return the folders directly in a folder, sorted; hidden ones are left out."""
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def named(folder: Path, names: Sequence[str]) -> list[Path]:
    """Return the subfolders with one of these names, in upper or lower case."""
    return [entry for entry in subfolders(folder) if entry.name.lower() in names]


# Folders as classes -----------------------------------------------------------------------------------------------


def folder_layout(path: Path) -> Layout:
    """Return what the files are if the folders are the classes."""
    root = training_root(path)
    classes = class_names(path, root)
    items = list_labeled(root, classes)
    unlabeled = [folder for place in dict.fromkeys([root, path]) for folder in named(place, UNLABELED)]
    items += [Labeled(file, UNKNOWN) for folder in unlabeled for file in find_images(folder)]
    warn_about_loose_images(path, root)
    warn_about_inner_folders(root, classes)
    test = test_folder(path)
    return Layout(root, classes, items, list_known(test, classes, str(root)) if test else [])


def training_root(path: Path) -> Path:
    """Return the folder that holds the folders of classes: `train`, or the folder itself."""
    return next(iter(named(path, TRAIN)), path)


def test_folder(path: Path) -> Path | None:
    """Return the folder of test images; None if there is none."""
    return min(named(path, TEST), key=lambda folder: TEST.index(folder.name.lower()), default=None)


def folders_of_classes(path: Path, root: Path) -> tuple[str, ...]:
    """Return the names of the subfolders of `root` that have no special meaning."""
    special = UNLABELED if root != path else (*UNLABELED, *TEST)
    return tuple(folder.name for folder in subfolders(root) if folder.name.lower() not in special)


def class_names(path: Path, root: Path) -> tuple[str, ...]:
    """Return the class names: the subfolders of `root` without a special name."""
    others = [folder for folder in subfolders(path) if folder.name.lower() not in (*UNLABELED, *TRAIN, *TEST)]
    if root != path and others:
        raise AggMatchError(
            f"{path} has both {root.name} and {printable(others[0].name)}: put all classes into {root}, or none of "
            f"them."
        )
    classes = folders_of_classes(path, root)
    if len(classes) < 2:
        raise too_few_classes(root, classes)
    for name in classes:
        if name != printable(name):
            raise AggMatchError(
                f"The name of the class folder {printable(root / name)} is not UTF-8 or has control characters. "
                f"Rename it."
            )
    return classes


def too_few_classes(root: Path, classes: Sequence[str]) -> AggMatchError:
    """Return the error for a folder with fewer than two folders of classes, with what its images could be."""
    problem = f"{root} must have a folder of images for each of at least two classes, got {found(classes)}"
    below = subfolders(root / classes[0]) if classes else []
    if len(below) > 1:
        return AggMatchError(f"{problem}, which has folders itself. Did you mean {printable(root / classes[0])}?")
    loose = [*loose_images(root), *(file for folder in named(root, UNLABELED) for file in find_images(folder))]
    if loose and not classes:
        return AggMatchError(
            f"{problem}, but {plural(len(loose), 'image')} without a label. Label some in the browser (aggmatch "
            f"label), or let aggmatch choose some and fill in a table (aggmatch suggest). If you have a table of "
            f"labels, name it: data.labels_file",
            options=f"aggmatch label {root}, aggmatch suggest {root}, --labels-file {TABLE}",
        )
    return AggMatchError(
        f"{problem}: {root}/CLASS/image.jpg, and {root}/{UNLABELED[0]}/image.jpg for images without a label. If the "
        f"labels are in a table, name it: data.labels_file",
        options=f"--labels-file {TABLE}",
    )


def found(classes: Sequence[str]) -> str:
    """Return the classes in words, for a message that there are too few."""
    return f"only '{printable(classes[0])}'" if classes else "none"


def list_labeled(root: Path, classes: Iterable[str]) -> list[Labeled]:
    """Return the images of each class that has a folder in `root`."""
    numbers = {name: k for k, name in enumerate(classes)}
    folders = [folder for folder in subfolders(root) if folder.name in numbers]
    return [Labeled(file, numbers[folder.name]) for folder in folders for file in find_images(folder)]


def list_known(folder: Path, classes: Sequence[str], owner: str) -> list[Labeled]:
    """Return the images of each class folder; raise if a folder is not a class of `owner`."""
    if unknown := sorted({entry.name for entry in subfolders(folder)} - set(classes)):
        raise AggMatchError(
            f"{folder} has the class '{printable(unknown[0])}', which {owner} does not have: its classes are "
            f"{', '.join(classes)}."
        )
    return list_labeled(folder, classes)


def loose_images(folder: Path) -> list[Path]:
    """Return the images directly in a folder; hidden ones are left out."""
    return [entry for entry in folder.iterdir() if entry.suffix.lower() in SUFFIXES and entry.name[0] != "."]


def warn_about_loose_images(*folders: Path) -> None:
    """Warn about images directly in one of these folders, which belong to no class."""
    for folder in dict.fromkeys(folders):
        if loose := loose_images(folder):
            warnings.warn(
                f"Left out: {plural(len(loose), 'image')} directly in {folder}, without a class. To use them as "
                f"unlabelled images, put them into {folder / UNLABELED[0]}.",
                stacklevel=3,
            )


def warn_about_inner_folders(root: Path, classes: Iterable[str]) -> None:
    """Warn about folders such as `unlabeled` inside a class, where they have no meaning: perhaps the wrong level."""
    inner = [folder for name in classes for folder in named(root / name, (*UNLABELED, *TRAIN, *TEST))]
    if inner:
        label, example = printable(inner[0].parent.name), printable(inner[0])
        warnings.warn(
            f"Images in {example} have the label '{label}': only directly in {root}, a folder called "
            f"'{inner[0].name}' is not part of a class.",
            stacklevel=3,
        )


# A table of labels ------------------------------------------------------------------------------------------------


def tables_in(path: Path) -> list[Path]:
    """Return the tables of labels in a folder, the one to use first."""
    return [path / name for name in (EVENTS, TABLE) if (path / name).is_file()]


def own_table(path: Path) -> Path | None:
    """Return the table of labels in a folder without folders of classes; None if it has none."""
    tables = tables_in(path)
    return tables[0] if tables and len(folders_of_classes(path, training_root(path))) < 2 else None


def unused_table(path: Path) -> Path | None:
    """Return the table of labels in a folder whose subfolders are the classes; None if there is none."""
    return next(iter(tables_in(path)), None) if path.is_dir() and own_table(path) is None else None


def table_layout(path: Path, table: Path) -> Layout:
    """Return what the files are according to a table of labels: files that it does not list have no label.

    Test images may have their label from the table, or from their folder `test/CLASS`.
    """
    rows, files = read_labels(table), find_images(path)
    given = labels_of(rows, files, path, table)
    classes = tuple(sorted(set(given.values())))
    if len(classes) < 2:
        raise AggMatchError(
            f"{table} must give the images in {path} at least two different labels, got {found(classes)}."
        )
    numbers = {name: k for k, name in enumerate(classes)}
    test = test_folder(path)
    train, tests, left_out = list[Labeled](), list[Labeled](), list[Path]()
    for file in files:
        if test is None or not file.is_relative_to(test):
            train.append(Labeled(file, numbers[given[file]] if file in given else UNKNOWN))
        elif (label := given.get(file, file.relative_to(test).parts[0])) in numbers:
            tests.append(Labeled(file, numbers[label]))
        else:
            left_out.append(file)
    if left_out:
        warnings.warn(
            f"Left out: {plural(len(left_out), 'image')} in {test} without a label in {table}, such as "
            f"{printable(left_out[0])}.",
            stacklevel=3,
        )
    return Layout(path, classes, train, tests)
