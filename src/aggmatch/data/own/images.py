"""Images of your own as a data set: a folder, a .zip of one, or an .npz file."""

import hashlib
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from aggmatch.data.images import UNKNOWN, DataSet, Images
from aggmatch.data.own.archive import NPZ, ZIP, Arrays, read_arrays, unpack
from aggmatch.data.own.decode import printable
from aggmatch.data.own.folder import (
    Labeled,
    find_images,
    folder_layout,
    folders_of_classes,
    found,
    list_known,
    name_below,
    own_table,
    table_layout,
    test_folder,
    training_root,
)
from aggmatch.data.own.labels_file import labels_of, read_labels
from aggmatch.data.own.pixels import decode_all
from aggmatch.data.rows import copy_rows, file_behind, keep_rows, pixel_folder
from aggmatch.errors import AggMatchError
from aggmatch.progress import Progress
from aggmatch.storage.cache import Cache
from aggmatch.storage.files import cache_folder


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
    with unpacked(path, cache_dir) as folder:
        packed = [entry for entry in folder.iterdir() if entry.suffix.lower() == NPZ] if folder.is_dir() else [folder]
        if folder.is_file() or (len(packed) == 1 and not find_images(folder)):
            if labels_file:
                raise AggMatchError(f"A table of labels needs image files: {path} holds arrays and their labels.")
            spare = pixel_folder(cache_dir)
            return from_arrays(read_arrays(packed[0], side, spare), str(path), holdout, spare)
        cache = Cache(cache_folder(cache_dir) / "images")
        return read_folder(
            folder, side, holdout, name=str(path), labels_file=labels_file, cache=cache, progress=progress
        )


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
        hashed = [name_to_hash(item, root) for item in kept_items]
        train, test = hold_out(train, hashed, holdout, cache.folder if cache else None)
    return DataSet(name or str(path), train, test, classes, mirror=True)


def read_unsorted(
    path: Path, side: int, *, labels_file: Path | None = None, cache_dir: str | None = None
) -> tuple[Images, tuple[str, ...]]:
    """Read all images of a folder or .zip but its test images, even if few or none have a label; and their classes.

    See `read_own_images` for the parameters. Without a table, the folders of classes tell the labels; images elsewhere
    have none.

    Example: `read_unsorted(Path("photos"), 128)[0].labels` is −1 for every image before the first label.
    """
    with unpacked(path, cache_dir) as folder:
        if not folder.is_dir():
            raise AggMatchError(f"{path} is not a folder of image files, or a .zip of one.")
        files, test, root = find_images(folder), test_folder(folder), training_root(folder)
        if table := labels_file or own_table(folder):
            given = labels_of(read_labels(table), files, folder, table)
        else:
            known = folders_of_classes(folder, root)
            below = {file: file.relative_to(root).parts[0] for file in files if file.is_relative_to(root)}
            given = {file: name for file, name in below.items() if name in known}
        classes = tuple(sorted(set(given.values())))
        numbers = {name: k for k, name in enumerate(classes)}
        items = [Labeled(file, numbers[given[file]] if file in given else UNKNOWN) for file in files]
        cache = Cache(cache_folder(cache_dir) / "images")
        every, kept = read_images(items, folder, side, cache=cache)
    wanted = [row for row, position in enumerate(kept) if test is None or not files[position].is_relative_to(test)]
    return every.take(wanted), classes


def from_arrays(arrays: Arrays, name: str, holdout: float, folder: Path | None = None) -> DataSet:
    """Return the content of an .npz file as a data set. folder: see `hold_out`."""
    if len(arrays.classes) < 2:
        raise AggMatchError(f"The labels of {name} must be of at least two classes, got {found(arrays.classes)}.")
    train, test = called(arrays.train, "row"), arrays.test and called(arrays.test, "test row")
    if test is None:
        train, test = hold_out(train, [str(number).encode() for number in range(len(train))], holdout, folder)
    return DataSet(name, train, test, arrays.classes, mirror=True)


def called(images: Images, word: str) -> Images:
    """Return images with a name for each, its row in the file, which stays the same if others become test images."""
    return Images(images.pixels, images.labels, tuple(f"{word} {number}" for number in range(len(images))))


def read_labeled(
    path: Path, classes: Sequence[str], side: int, channels: int, *, cache_dir: str | None = None
) -> Images:
    """Read the images of FOLDER/CLASS/ for some or all of a model's classes; the folder may be in a .zip file."""
    with unpacked(path, cache_dir) as folder:
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


def hold_out(images: Images, names: Sequence[bytes], share: float, folder: Path | None) -> tuple[Images, Images]:
    """Return the images without a share of each class, and this share; see `held_out`. Do not use `images` afterwards.

    folder: for images that do not fit into memory; see `new_pixels`.
    """
    held = held_out(images.labels.tolist(), names, share) if share else set()
    if not held:
        return images, part_of(images, slice(0))
    kept = [position for position in range(len(images)) if position not in held]
    test = images.take(sorted(held))
    if file_behind(images.pixels):
        pixels = copy_rows([images.pixels], kept, folder)
    else:
        pixels = torch.from_numpy(keep_rows(images.pixels.numpy(), kept))
    return Images(pixels, images.labels[kept], tuple(images.names[row] for row in kept if images.names)), test


def held_out(labels: Sequence[int], names: Sequence[bytes], share: float) -> set[int]:
    """Return the positions of this share of each class, chosen by a hash of names: at least one of two, never all."""
    chosen: set[int] = set()
    for label in set(labels) - {UNKNOWN}:
        members = [position for position, own in enumerate(labels) if own == label]
        members.sort(key=lambda position: hashlib.sha256(names[position]).digest())
        chosen |= set(members[: min(len(members) - 1, max(1, round(share * len(members))))])
    return chosen


@contextmanager
def unpacked(path: Path, cache_dir: str | None) -> Iterator[Path]:
    """Within, the folder of a .zip file, or any other path itself. Messages name the .zip file and not the folder."""
    if path.suffix.lower() != ZIP or not path.is_file():
        yield path
        return
    folder = unpack(path, cache_dir)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield folder
        except AggMatchError as error:
            raise AggMatchError(str(error).replace(str(folder), str(path))) from None
    for warning in caught:
        warnings.warn(str(warning.message).replace(str(folder), str(path)), warning.category, stacklevel=4)


# Files ------------------------------------------------------------------------------------------------------------


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
    try:
        with unpacked(Path(data), cache_dir) as folder:
            return folder / name if name and (folder / name).is_file() else None
    except AggMatchError:
        return None
