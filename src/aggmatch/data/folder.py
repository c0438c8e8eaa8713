"""Images of one's own: files from folders as uint8 tensors, and a folder of them as a data set.

A folder is laid out as people have it anyway: `FOLDER/CLASS/...` holds the labelled images of a class and
`FOLDER/unlabeled/...` those without a label, both also below `FOLDER/train`; `FOLDER/test/CLASS/...`, if it is there,
holds the test images. Images may lie any number of folders deep, in any size and common format.
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
FOREIGN = (".avif", ".cr2", ".dng", ".heic", ".heif", ".jxl", ".nef")
"""Photos that are not read; a warning counts them."""
UNLABELED, TRAIN = ("unlabeled", "unlabelled"), ("train",)
TEST = ("test", "val", "valid", "validation")
"""Names of folders that are not classes, in any case; of several with test images the first counts."""
NAMED = 3
"""Unreadable files that a warning names; the others it counts."""


class Labeled(NamedTuple):
    """A file and the number of its class, or −1."""

    file: Path
    label: int


# Files -----------------------------------------------------------------------------------------------------------


def find_images(folder: Path) -> list[Path]:
    """Image files below a folder by their suffix, in the order of their names; hidden ones are left out.

    Links to files are followed, links to folders are not: they may lead in circles.
    """

    def refuse(error: OSError) -> None:
        raise error

    found, foreign = [], []
    for place, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        seen = [Path(place, name) for name in files if not name.startswith(".")]
        found += [file for file in seen if file.suffix.lower() in SUFFIXES]
        foreign += [file for file in seen if file.suffix.lower() in FOREIGN]
    if foreign:
        count = plural(len(foreign), "photo")
        warnings.warn(f"Left out: {count} in {folder}, such as {min(foreign)}. Convert them to JPEG.", stacklevel=2)
    return sorted(found)


def decode(file: Path, side: int, channels: int) -> Tensor:
    """An image as uint8, channels × side × side: turned as the camera held it, cut to a square about its centre.

    What is transparent becomes white; images of more than 8 bits are scaled from their least to their largest value.
    Raises OSError, ValueError or SyntaxError for what is no image, as Pillow does.
    """
    with Image.open(file) as image:
        mode = "RGB" if channels == 3 else "L"
        image.draft(mode, (side, side))  # lets JPEG decode at a fraction of its size
        upright = ImageOps.exif_transpose(image)
        if upright.mode[0] in "IF":  # more than 8 bits, of which Pillow would cut off what is above 255
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
    """The images that can be read, (N, channels, side, side), and their positions; a warning names the others."""

    def attempt(file: Path) -> Tensor | str:
        try:
            return decode(file, side, channels)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            return "not an image" if isinstance(error, UnidentifiedImageError) else str(error) or "damaged"

    with warnings.catch_warnings(), ThreadPoolExecutor() as pool:
        warnings.simplefilter("ignore")  # of unusual but readable files; here, as threads share the filters
        results = list(pool.map(attempt, files))
    bad = [f"{file} ({result})" for file, result in zip(files, results, strict=True) if isinstance(result, str)]
    if bad:
        more = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
        listed = ", ".join(bad[:NAMED])
        warnings.warn(
            f"{len(bad)} of {len(files)} files cannot be read and are left out: {listed}{more}.", stacklevel=2
        )
    good = [position for position, result in enumerate(results) if not isinstance(result, str)]
    images = [result for result in results if not isinstance(result, str)]
    return torch.stack(images) if images else torch.zeros(0, channels, side, side, dtype=torch.uint8), good


# Data sets ---------------------------------------------------------------------------------------------------------


def read_folder(path: Path, side: int, holdout: float) -> DataSet:
    """The data set of a folder, its images scaled to `side`.

    Without a folder `test`, a share of the labelled images of each class is held out for testing, chosen by a hash of
    their names: whoever adds images turns hardly any training image into a test image.
    """
    if not path.is_dir():
        raise AggMatchError(
            f"There is no folder {path}. Name one with images, or a data set of `aggmatch list data`; where the images "
            f"of a run have moved: aggmatch train NEW/PLACE --resume --out RUN"
        )
    root = next(iter(special(path, TRAIN)), path)
    classes = class_names(path, root)
    items = list_labeled(root, classes)
    unlabeled = [folder for place in dict.fromkeys([root, path]) for folder in special(place, UNLABELED)]
    items += [Labeled(file, UNKNOWN) for folder in unlabeled for file in find_images(folder)]
    warn_of_loose_images(path, root)
    train, items = read_images(items, path, side)
    given = sorted(special(path, TEST), key=lambda folder: TEST.index(folder.name.lower()))
    if given and (tests := list_known(given[0], classes, str(root))):
        test, _ = read_images(tests, path, side)
    else:
        held = held_out(items, root, holdout)
        test = train.take([position for position, item in enumerate(items) if item in held])
        train = train.take([position for position, item in enumerate(items) if item not in held])
    data = DataSet(str(path), train, test, classes, mirror=True)
    untested = sorted(set(range(len(classes))) - set(data.test.labels.tolist()))
    if untested:
        raise AggMatchError(
            f"Class '{classes[untested[0]]}' of {path} has no image to test with. Put some into "
            f"{path / TEST[0] / classes[untested[0]]}, or label at least two of it."
        )
    return data


def warn_of_loose_images(*folders: Path) -> None:
    """Say that images directly in one of these folders mean nothing."""
    for folder in dict.fromkeys(folders):
        loose = [entry for entry in folder.iterdir() if entry.suffix.lower() in SUFFIXES and entry.name[0] != "."]
        if loose:
            warnings.warn(
                f"Left out: {plural(len(loose), 'image')} directly in {folder}, without a class. To learn from them "
                f"all the same, put them into {folder / UNLABELED[0]}.",
                stacklevel=3,
            )


def subfolders(folder: Path) -> list[Path]:
    """Folders directly in a folder, by name; hidden ones are left out."""
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def special(folder: Path, names: Sequence[str]) -> list[Path]:
    """The subfolders that bear one of some names, in capitals or not."""
    return [entry for entry in subfolders(folder) if entry.name.lower() in names]


def class_names(path: Path, root: Path) -> tuple[str, ...]:
    """The classes: folders below `root` that mean nothing else."""
    classes = tuple(folder.name for folder in subfolders(root) if folder.name.lower() not in UNLABELED)
    if root == path:
        classes = tuple(name for name in classes if name.lower() not in TEST)
    elif beside := [folder for folder in subfolders(path) if folder.name.lower() not in (*UNLABELED, *TRAIN, *TEST)]:
        raise AggMatchError(
            f"{path} has both {root.name} and {beside[0].name}: put all classes into {root}, or none of them."
        )
    if len(classes) < 2:
        found = f"only '{classes[0]}'" if classes else "none"
        raise AggMatchError(
            f"{root} must hold a folder of images for each of at least two classes, got {found}: "
            f"{root}/CLASS/image.jpg, and {root}/{UNLABELED[0]}/image.jpg for images without a label."
        )
    return classes


def list_labeled(root: Path, classes: Iterable[str]) -> list[Labeled]:
    """The images of each class folder that is there."""
    numbers = {name: k for k, name in enumerate(classes)}
    folders = [folder for folder in subfolders(root) if folder.name in numbers]
    return [Labeled(file, numbers[folder.name]) for folder in folders for file in find_images(folder)]


def list_known(folder: Path, classes: Sequence[str], owner: str) -> list[Labeled]:
    """The images of each class folder, none of which may be a class that the owner of the classes has not."""
    if strangers := sorted({entry.name for entry in subfolders(folder)} - set(classes)):
        raise AggMatchError(
            f"{folder} has the class '{strangers[0]}', which {owner} has not: its classes are {', '.join(classes)}."
        )
    return list_labeled(folder, classes)


def read_labeled(folder: Path, classes: Sequence[str], side: int, channels: int) -> Images:
    """The images of FOLDER/CLASS/ for some or all of a model's classes."""
    if not folder.is_dir():
        raise AggMatchError(f"There is no folder {folder}. Name one with a folder of images for each class.")
    images, _ = read_images(list_known(folder, classes, "the model"), folder, side, channels)
    if not len(images):
        raise AggMatchError(f"{folder} has no image of a class: put them into {folder / classes[0]} and so on.")
    return images


def held_out(items: Sequence[Labeled], root: Path, share: float) -> set[Labeled]:
    """The given share of each class by a hash of names: at least one image where there are two, and never all."""
    chosen: set[Labeled] = set()
    for label in {item.label for item in items} - {UNKNOWN}:
        mine = [item for item in items if item.label == label]
        mine.sort(key=lambda item: hashlib.sha256(os.fsencode(item.file.relative_to(root).as_posix())).digest())
        chosen |= set(mine[: min(len(mine) - 1, max(1, round(share * len(mine))))])
    return chosen


def read_images(items: Sequence[Labeled], path: Path, side: int, channels: int = 3) -> tuple[Images, list[Labeled]]:
    """The images of the files that can be read, called by their names below `path`; and these files."""
    pixels, kept = decode_all([item.file for item in items], side, channels)
    readable = [items[position] for position in kept]
    labels = torch.tensor([item.label for item in readable], dtype=torch.int64)
    return Images(pixels, labels, tuple(name_below(path, item.file) for item in readable)), readable


def name_below(folder: Path, file: Path) -> str:
    """The name of a file below a folder, in characters that can be printed."""
    return os.fsencode(file.relative_to(folder).as_posix()).decode(errors="replace")
