"""Images of your own: image files as uint8 tensors, and a folder of image files as a data set.

`FOLDER/CLASS/...` holds the labelled images of a class and `FOLDER/unlabeled/...` the images without a label. Both may
also be in `FOLDER/train`. `FOLDER/test/CLASS/...` holds the test images and may be missing. Images may be in
subfolders of any depth, and have any size and any common format.
"""

import hashlib
import os
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from aggmatch.data.images import UNKNOWN, DataSet, Images
from aggmatch.errors import AggMatchError
from aggmatch.tables import plural

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
UNSUPPORTED = (".avif", ".cr2", ".dng", ".heic", ".heif", ".jxl", ".nef")
"""Photo formats that cannot be read; a warning counts these files."""
UNLABELED, TRAIN, TEST = ("unlabeled", "unlabelled"), ("train",), ("test", "val", "valid", "validation")
"""Folder names that are not classes, in upper or lower case. The first of TEST that exists holds the test images."""
NAMED = 3
"""Number of unreadable files that a warning names; it counts the others."""


class Labeled(NamedTuple):
    """A file and its class number, or −1."""

    file: Path
    label: int


def find_images(folder: Path) -> list[Path]:
    """Return the image files in a folder and its subfolders, sorted; hidden files are left out.

    Links to files are followed. Links to folders are not, because they may form a cycle.
    """

    def fail(error: OSError) -> None:
        raise error

    found, unsupported = [], []
    for place, folders, files in os.walk(folder, onerror=fail):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        visible = [Path(place, name) for name in files if not name.startswith(".")]
        found += [file for file in visible if file.suffix.lower() in SUFFIXES]
        unsupported += [file for file in visible if file.suffix.lower() in UNSUPPORTED]
    if unsupported:
        count = plural(len(unsupported), "photo")
        warnings.warn(f"Left out: {count} in {folder}, such as {min(unsupported)}. Convert them to JPEG.", stacklevel=2)
    return sorted(found)


def decode(file: Path, side: int, channels: int) -> Tensor:
    """Read an image as uint8, (channels, side, side): rotated as its EXIF data says, then cropped to its centre square.

    Transparent pixels become white. Images of more than 8 bits are scaled from their smallest to their largest value.
    Raises OSError, ValueError or SyntaxError, as Pillow does, if the file is not an image.
    """
    with Image.open(file) as image:
        mode = "RGB" if channels == 3 else "L"
        image.draft(mode, (side, side))  # JPEG decodes faster at a fraction of its size
        upright = ImageOps.exif_transpose(image)
        if upright.mode[0] in "IF":  # more than 8 bits: Pillow would clip values above 255
            values = np.asarray(upright, dtype=np.float64)
            values = np.where(np.isfinite(values), values, np.nan)
            if np.isnan(values).all():
                raise ValueError("it has no finite value")
            low, high = np.nanmin(values), np.nanmax(values)
            scaled = np.nan_to_num((values - low) / (high - low or 1))
            upright = Image.fromarray((255 * scaled).astype(np.uint8))
        if upright.has_transparency_data:
            layer = upright.convert("RGBA")
            upright = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
        square = ImageOps.fit(upright.convert(mode), (side, side), Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.array(square))
    return pixels.permute(2, 0, 1) if channels == 3 else pixels[None]


def decode_all(files: Sequence[Path], side: int, channels: int) -> tuple[Tensor, list[int]]:
    """Return the readable images, (N, channels, side, side), and their positions; a warning names unreadable files."""

    def attempt(file: Path) -> Tensor | str:
        try:
            return decode(file, side, channels)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            return "not an image" if isinstance(error, UnidentifiedImageError) else str(error) or "corrupt"

    with warnings.catch_warnings(), ThreadPoolExecutor() as pool:
        # Pillow warns about unusual but readable files. Ignored here and not in `attempt`: threads share the filters.
        warnings.simplefilter("ignore")
        results = list(pool.map(attempt, files))
    bad = [f"{file} ({result})" for file, result in zip(files, results, strict=True) if isinstance(result, str)]
    if bad:
        listed = ", ".join(bad[:NAMED]) + (f" and {len(bad) - NAMED} more" if len(bad) > NAMED else "")
        warnings.warn(f"{len(bad)} of {len(files)} files cannot be read and are left out: {listed}.", stacklevel=2)
    good = [position for position, result in enumerate(results) if not isinstance(result, str)]
    images = [result for result in results if not isinstance(result, str)]
    return torch.stack(images) if images else torch.zeros(0, channels, side, side, dtype=torch.uint8), good


def read_folder(path: Path, side: int, holdout: float) -> DataSet:
    """Read a folder as a data set of colour images of `side` × `side` pixels.

    Without a test folder, the share `holdout` of the labelled images of each class becomes the test set. A hash of the
    file names chooses them, so that adding images moves hardly any training image to the test set.
    """
    if not path.is_dir():
        raise AggMatchError(
            f"There is no folder {path}. Name a folder of images, or a data set of `aggmatch list data`. If the images "
            f"of a run have moved, resume it with their new place.",
            options="aggmatch train NEW/PLACE --resume --out RUN",
        )
    root = next(iter(named(path, TRAIN)), path)
    classes = class_names(path, root)
    items = list_labeled(root, classes)
    unlabeled = [folder for place in dict.fromkeys([root, path]) for folder in named(place, UNLABELED)]
    items += [Labeled(file, UNKNOWN) for folder in unlabeled for file in find_images(folder)]
    warn_about_loose_images(path, root)
    train, items = read_images(items, path, side)
    test_folders = sorted(named(path, TEST), key=lambda folder: TEST.index(folder.name.lower()))
    if test_folders and (tests := list_known(test_folders[0], classes, str(root))):
        test, _ = read_images(tests, path, side)
    else:
        held = held_out(items, root, holdout)
        test = train.take([position for position, item in enumerate(items) if item in held])
        train = train.take([position for position, item in enumerate(items) if item not in held])
    data = DataSet(str(path), train, test, classes, mirror=True)
    untested = sorted(set(range(len(classes))) - set(data.test.labels.tolist()))
    if untested:
        raise AggMatchError(
            f"Class '{classes[untested[0]]}' of {path} has no test image. Put some into "
            f"{path / TEST[0] / classes[untested[0]]}, or label at least two images of it."
        )
    return data


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


def subfolders(folder: Path) -> list[Path]:
    """Return the folders directly in a folder, sorted; hidden ones are left out."""
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def named(folder: Path, names: Sequence[str]) -> list[Path]:
    """Return the subfolders with one of these names, in upper or lower case."""
    return [entry for entry in subfolders(folder) if entry.name.lower() in names]


def class_names(path: Path, root: Path) -> tuple[str, ...]:
    """Return the class names: the subfolders of `root` without a special name."""
    classes = tuple(folder.name for folder in subfolders(root) if folder.name.lower() not in UNLABELED)
    if root == path:
        classes = tuple(name for name in classes if name.lower() not in TEST)
    elif others := [folder for folder in subfolders(path) if folder.name.lower() not in (*UNLABELED, *TRAIN, *TEST)]:
        raise AggMatchError(
            f"{path} has both {root.name} and {others[0].name}: put all classes into {root}, or none of them."
        )
    if len(classes) < 2:
        found = f"only '{classes[0]}'" if classes else "none"
        raise AggMatchError(
            f"{root} must have a folder of images for each of at least two classes, got {found}: "
            f"{root}/CLASS/image.jpg, and {root}/{UNLABELED[0]}/image.jpg for images without a label."
        )
    return classes


def list_labeled(root: Path, classes: Iterable[str]) -> list[Labeled]:
    """Return the images of each class that has a folder in `root`."""
    numbers = {name: k for k, name in enumerate(classes)}
    folders = [folder for folder in subfolders(root) if folder.name in numbers]
    return [Labeled(file, numbers[folder.name]) for folder in folders for file in find_images(folder)]


def list_known(folder: Path, classes: Sequence[str], owner: str) -> list[Labeled]:
    """Return the images of each class folder; raise if a folder is not a class of `owner`."""
    if unknown := sorted({entry.name for entry in subfolders(folder)} - set(classes)):
        raise AggMatchError(
            f"{folder} has the class '{unknown[0]}', which {owner} does not have: its classes are {', '.join(classes)}."
        )
    return list_labeled(folder, classes)


def read_labeled(folder: Path, classes: Sequence[str], side: int, channels: int) -> Images:
    """Read the images of FOLDER/CLASS/ for some or all of a model's classes."""
    if not folder.is_dir():
        raise AggMatchError(f"There is no folder {folder}. Name one with a folder of images for each class.")
    images, _ = read_images(list_known(folder, classes, "the model"), folder, side, channels)
    if not len(images):
        raise AggMatchError(f"{folder} has no image of a class: put them into {folder / classes[0]} and so on.")
    return images


def held_out(items: Sequence[Labeled], root: Path, share: float) -> set[Labeled]:
    """Return this share of each class, chosen by a hash of file names: at least one of two images, and never all."""
    chosen: set[Labeled] = set()
    for label in {item.label for item in items} - {UNKNOWN}:
        members = [item for item in items if item.label == label]
        members.sort(key=lambda item: hashlib.sha256(os.fsencode(item.file.relative_to(root).as_posix())).digest())
        chosen |= set(members[: min(len(members) - 1, max(1, round(share * len(members))))])
    return chosen


def read_images(items: Sequence[Labeled], path: Path, side: int, channels: int = 3) -> tuple[Images, list[Labeled]]:
    """Return the images of the readable files, named by their paths relative to `path`, and these files."""
    pixels, kept = decode_all([item.file for item in items], side, channels)
    readable = [items[position] for position in kept]
    labels = torch.tensor([item.label for item in readable], dtype=torch.int64)
    return Images(pixels, labels, tuple(name_below(path, item.file) for item in readable)), readable


def name_below(folder: Path, file: Path) -> str:
    """Return the path of a file relative to a folder, in printable characters."""
    return os.fsencode(file.relative_to(folder).as_posix()).decode(errors="replace")
