"""Images of your own as a data set: what the folders and tables mean.

`FOLDER/CLASS/...` holds the labelled images of a class and `FOLDER/unlabeled/...` the images without a label. Both may
also be in `FOLDER/train`. `FOLDER/test/CLASS/...` holds the test images and may be missing. Images may be in
subfolders of any depth, and have any size and any common format. With a table of labels, the folders may be any:
only `FOLDER/test` keeps its meaning.
"""

import hashlib
import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from aggmatch.cache import Cache
from aggmatch.data.archive import NPZ, ZIP, Arrays, read_arrays, unpack
from aggmatch.data.decode import SUFFIXES, UNSUPPORTED, printable
from aggmatch.data.images import UNKNOWN, DataSet, Images
from aggmatch.data.labels_file import labels_of, read_labels
from aggmatch.data.pixels import decode_all
from aggmatch.data.progress import Progress
from aggmatch.errors import AggMatchError
from aggmatch.files import cache_folder
from aggmatch.tables import plural

UNLABELED, TRAIN, TEST = ("unlabeled", "unlabelled"), ("train",), ("test", "val", "valid", "validation")
"""Folder names that are not classes, in upper or lower case. The first of TEST that exists holds the test images."""
TABLE = "labels.csv"
"""The table of labels of a folder that has no folders of classes."""


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


# Reading ----------------------------------------------------------------------------------------------------------


def read_own_images(
    path: Path,
    side: int,
    holdout: float,
    *,
    labels_file: Path | None = None,
    cache_dir: str | None = None,
    progress: Progress | None = None,
) -> DataSet:
    """Read images of your own as a data set of `side` × `side` pixels: a folder, a .zip of one, or an .npz file.

    holdout: without test images, this share of the labelled images of each class becomes the test set. A hash of the
    file names chooses them, so that adding images moves hardly any training image to the test set. With 0 there is no
    test set. labels_file: a table of labels; otherwise folders are classes. cache_dir: see `files.cache_folder`.
    progress: progress callback, takes the images read so far and in all.

    Example: `read_own_images(Path("photos"), side=32, holdout=0.2).classes`.
    """
    if str(path) != printable(path):
        raise AggMatchError(f"The path {printable(path)} is not UTF-8 or has control characters. Rename the folder.")
    folder = path
    if path.suffix.lower() == ZIP and not path.is_dir():
        folder = unpack(path, cache_dir)
        packed = [entry for entry in folder.iterdir() if entry.suffix.lower() == NPZ]
        folder = packed[0] if len(packed) == 1 and not find_images(folder) else folder
    if folder.suffix.lower() == NPZ and not folder.is_dir():
        if labels_file:
            raise AggMatchError(f"A table of labels needs a folder or a .zip of images: {path} holds its own labels.")
        return from_arrays(read_arrays(folder, side), str(path), holdout)
    cache = Cache(cache_folder(cache_dir) / "images")
    return read_folder(folder, side, holdout, name=str(path), labels_file=labels_file, cache=cache, progress=progress)


def read_folder(
    path: Path,
    side: int,
    holdout: float,
    *,
    name: str = "",
    labels_file: Path | None = None,
    cache: Cache | None = None,
    progress: Progress | None = None,
) -> DataSet:
    """Read a folder as a data set of colour images; see `read_own_images`. name: of the data set, if not the path."""
    if not path.is_dir():
        raise AggMatchError(f"There is no folder {path}.")
    table = labels_file or own_table(path)
    root, classes, items, tests = table_layout(path, table) if table else folder_layout(path)
    every, kept = read_images([*items, *tests], path, side, cache=cache, progress=progress)
    count = sum(position < len(items) for position in kept)
    train, test = part_of(every, slice(count)), part_of(every, slice(count, None))
    if not tests:
        kept_items = [items[position] for position in kept]
        train, test = hold_out(train, [name_to_hash(item, root) for item in kept_items], holdout)
    return checked(DataSet(name or str(path), train, test, classes, mirror=True), bool(tests) or holdout > 0)


def from_arrays(arrays: Arrays, name: str, holdout: float) -> DataSet:
    """Return the content of an .npz file as a data set."""
    if len(arrays.classes) < 2:
        raise AggMatchError(f"The labels of {name} must be of at least two classes, got {found(arrays.classes)}.")
    train, test = arrays.train, arrays.test
    if test is None:
        train, test = hold_out(train, [str(number).encode() for number in range(len(train))], holdout)
    return checked(DataSet(name, train, test, arrays.classes, mirror=True), arrays.test is not None or holdout > 0)


def checked(data: DataSet, with_test: bool) -> DataSet:
    """Return the data set; raise `AggMatchError` if it should have a test set and a class has no test image."""
    untested = sorted(set(range(len(data.classes))) - set(data.test.labels.tolist()))
    if with_test and untested:
        raise AggMatchError(
            f"Class '{data.classes[untested[0]]}' of {data.name} has no test image. Put some into the folder "
            f"{TEST[0]}/{data.classes[untested[0]]}, label at least two images of it, or train without test images: "
            f"--set data.holdout=0"
        )
    return data


def read_labeled(
    path: Path, classes: Sequence[str], side: int, channels: int, *, cache_dir: str | None = None
) -> Images:
    """Read the images of FOLDER/CLASS/ for some or all of a model's classes; the folder may be in a .zip file."""
    folder = unpack(path, cache_dir) if path.suffix.lower() == ZIP and path.is_file() else path
    if not folder.is_dir():
        raise AggMatchError(f"There is no folder {path}. Name one with a folder of images for each class.")
    cache = Cache(cache_folder(cache_dir) / "evaluated")  # the entry of a training folder holds more of its images
    images, _ = read_images(list_known(folder, classes, "the model"), folder, side, channels, cache=cache)
    if not len(images):
        raise AggMatchError(f"{path} has no image of a class: put them into {path / classes[0]} and so on.")
    return images


def read_images(
    items: Sequence[Labeled],
    path: Path,
    side: int,
    channels: int = 3,
    *,
    cache: Cache | None = None,
    progress: Progress | None = None,
) -> tuple[Images, list[int]]:
    """Return the images of the readable files, named by their paths relative to `path`, and their positions."""
    files = [item.file for item in items]
    pixels, kept = decode_all(files, side, channels, root=path, cache=cache, progress=progress)
    labels = torch.tensor([items[position].label for position in kept], dtype=torch.int64)
    return Images(pixels, labels, tuple(name_below(path, files[position]) for position in kept)), kept


def name_to_hash(item: Labeled, root: Path) -> bytes:
    """Return the path of a labelled file in bytes; nothing for others, which may be outside of `root`."""
    return b"" if item.label == UNKNOWN else os.fsencode(item.file.relative_to(root).as_posix())


def part_of(images: Images, rows: slice) -> Images:
    """Return a range of images without copying their pixels."""
    return Images(images.pixels[rows], images.labels[rows], images.names[rows])


def hold_out(images: Images, names: Sequence[bytes], share: float) -> tuple[Images, Images]:
    """Return the images without a share of each class, and this share; see `held_out`."""
    held = held_out(images.labels.tolist(), names, share) if share else set()
    kept = [position for position in range(len(images)) if position not in held]
    return images.take(kept), images.take(sorted(held))


def held_out(labels: Sequence[int], names: Sequence[bytes], share: float) -> set[int]:
    """Return the positions of this share of each class, chosen by a hash of names: at least one of two, never all."""
    chosen: set[int] = set()
    for label in set(labels) - {UNKNOWN}:
        members = [position for position, own in enumerate(labels) if own == label]
        members.sort(key=lambda position: hashlib.sha256(names[position]).digest())
        chosen |= set(members[: min(len(members) - 1, max(1, round(share * len(members))))])
    return chosen


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


def image_files(path: Path, cache_dir: str | None = None) -> dict[Path, str]:
    """Return image files with the names to show: the file itself, or all in a folder or a .zip file.

    Example: `image_files(Path("new.zip"))` has values such as `new.zip/1.jpg`.
    """
    if path.is_dir():
        return {file: str(file) for file in find_images(path)}
    if path.suffix.lower() != ZIP:
        return {path: str(path)}
    folder = unpack(path, cache_dir)
    return {file: str(path / file.relative_to(folder)) for file in find_images(folder)}


def original_file(data: str, name: str, cache_dir: str | None = None) -> Path | None:
    """Return the file of an image; None if it has none, as in an .npz file, or is gone.

    data: the setting `data.name`. name: one of `Images.names`. Example: `original_file("photos", "rose/1.jpg")`.
    """
    path = Path(data)
    try:
        folder = unpack(path, cache_dir) if path.suffix.lower() == ZIP and path.is_file() else path
    except AggMatchError:
        return None
    file = folder / name
    return file if name and file.is_file() else None


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
        raise AggMatchError(
            f"{root} must have a folder of images for each of at least two classes, got {found(classes)}: "
            f"{root}/CLASS/image.jpg, and {root}/{UNLABELED[0]}/image.jpg for images without a label. If the labels "
            f"are in a table: --labels-file {TABLE}"
        )
    for name in classes:
        if name != printable(name):
            raise AggMatchError(
                f"The name of the class folder {printable(root / name)} is not UTF-8 or has control characters. "
                f"Rename it."
            )
    return classes


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


def warn_about_loose_images(*folders: Path) -> None:
    """Warn about images directly in one of these folders, which belong to no class."""
    for folder in dict.fromkeys(folders):
        loose = [entry for entry in folder.iterdir() if entry.suffix.lower() in SUFFIXES and entry.name[0] != "."]
        if loose:
            warnings.warn(
                f"Left out: {plural(len(loose), 'image')} directly in {folder}, without a class. To use them as "
                f"unlabelled images, put them into {folder / UNLABELED[0]}.",
                stacklevel=3,
            )


# A table of labels ------------------------------------------------------------------------------------------------


def own_table(path: Path) -> Path | None:
    """Return the table of labels in a folder without folders of classes; None if it has none."""
    table = path / TABLE
    return table if table.is_file() and len(folders_of_classes(path, training_root(path))) < 2 else None


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
