"""Data sets in one file: `.zip` of a folder of images, and `.npz` with the images as arrays."""

import hashlib
import math
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from aggmatch.data.images import UNKNOWN, Images
from aggmatch.data.own.decode import SUFFIXES, printable
from aggmatch.data.own.labels_file import READERS
from aggmatch.data.rows import AT_ONCE, new_pixels
from aggmatch.errors import AggMatchError
from aggmatch.progress import progress_bar
from aggmatch.storage.cache import PART, keep_newest, mark_used, read_header, remove
from aggmatch.storage.files import cache_folder

ZIP, NPZ = ".zip", ".npz"
UNPACKED = 20 * 2**30
"""Bytes of all unpacked archives together, and the most that one of them may unpack to."""
MEMBERS = 1_000_000
"""Files that an archive may hold."""
IN_MEMORY = 8 * 2**30
"""Bytes of an array of an .npz file."""
CHUNK = 2**20


@contextmanager
def opening(path: Path) -> Iterator[zipfile.ZipFile]:
    """Within, an open archive; every exception of the parser becomes an `AggMatchError` that names the file."""
    if not path.is_file():
        raise AggMatchError(f"There is no file {printable(path)}.")
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except AggMatchError:
        raise
    except OSError as error:
        raise AggMatchError(f"Cannot read {printable(path)}: {error.strerror or error}.") from None
    except MemoryError:
        raise AggMatchError(f"There is not enough memory to read {printable(path)}.") from None
    except Exception as error:  # damaged archives raise almost any exception
        why = printable(str(error)) or type(error).__name__
        raise AggMatchError(f"{printable(path)} is corrupt ({why}).") from None


# Zip --------------------------------------------------------------------------------------------------------------


def unpack(path: Path, cache_dir: str | None = None) -> Path:
    """Return a folder with the images and tables of a .zip file, unpacked in the cache folder unless it already is.

    The folder is named after the content, so that a changed archive is unpacked again. If all files of the archive are
    in one folder, that folder is returned. cache_dir: see `files.cache_folder`. Raises `AggMatchError` if a path in
    the archive leads outside, or if it would unpack to more than 20 GiB.

    Example: `find_images(unpack(Path("photos.zip")))`.
    """
    with opening(path) as archive:
        members = wanted_members(archive, path)
        listed = [f"{name}\0{info.CRC}\0{info.file_size}" for name, info in members.items()]
        key = hashlib.blake2b("\n".join(sorted(listed)).encode(errors="replace"), digest_size=20).hexdigest()
        folder = cache_folder(cache_dir) / "archives" / key
        if not is_complete(folder, members):
            unpack_members(archive, members, folder, path)
    mark_used(folder)
    keep_newest(folder.parent, UNPACKED, folder)
    return top_folder(folder)


def wanted_members(archive: zipfile.ZipFile, path: Path) -> dict[PurePosixPath, zipfile.ZipInfo]:
    """Return the images and tables of an archive by their path; raise if they are too many, too large or outside."""
    infos = archive.infolist()
    if len(infos) > MEMBERS:
        raise AggMatchError(f"{path} holds {len(infos):,} files, more than {MEMBERS:,}. Unpack it and name the folder.")
    members = {}
    for info in infos:
        name = PurePosixPath(info.filename.replace("\\", "/"))
        if name.is_absolute() or ".." in name.parts:
            raise AggMatchError(f"{path} holds '{printable(info.filename)}', which leads outside of its folder.")
        hidden = any(part.startswith((".", "__MACOSX")) for part in name.parts)
        if hidden or info.is_dir() or stat.S_ISLNK(info.external_attr >> 16):
            continue
        if name.suffix.lower() in (*SUFFIXES, *READERS, NPZ):
            if info.flag_bits & 1:
                raise AggMatchError(f"{path} is encrypted. Unpack it and name the folder.")
            members[name] = info
    size = sum(info.file_size for info in members.values())
    if size > UNPACKED:
        raise AggMatchError(f"{path} would unpack to {size / 2**30:,.0f} GiB, more than {UNPACKED // 2**30}.")
    return members


def is_complete(folder: Path, members: Mapping[PurePosixPath, zipfile.ZipInfo]) -> bool:
    """Whether a folder holds every member in its full size."""
    try:
        return folder.is_dir() and all(
            (folder / name).stat().st_size == info.file_size for name, info in members.items()
        )
    except OSError:
        return False


def unpack_members(
    archive: zipfile.ZipFile, members: Mapping[PurePosixPath, zipfile.ZipInfo], folder: Path, path: Path
) -> None:
    """Unpack members into a new folder, which exists only when it is complete."""
    total, done = sum(info.file_size for info in members.values()), 0
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if total > (free := shutil.disk_usage(folder.parent).free):
            raise OSError(f"{total / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB are free")
        part = Path(tempfile.mkdtemp(PART, f".{folder.name}.", folder.parent))
        try:
            with progress_bar("Unpacking", "bytes") as report:
                for name, info in members.items():
                    (part / name).parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(info) as packed, (part / name).open("wb") as file:
                        shutil.copyfileobj(packed, file, CHUNK)
                    done += info.file_size
                    report(done, total)
            if not is_complete(folder, members):  # otherwise another process was faster
                remove(folder)
                part.rename(folder)
        finally:
            remove(part)
    except OSError as error:
        raise AggMatchError(
            f"Cannot unpack {path} into {folder.parent}: {error.strerror or error}. Free some space, or use another "
            f"folder: runtime.cache_dir",
            options="--set runtime.cache_dir=FOLDER",
        ) from None


def top_folder(folder: Path) -> Path:
    """Return the folder itself, or the only folder in it if there is nothing else."""
    while len(entries := list(folder.iterdir())) == 1 and entries[0].is_dir():
        folder = entries[0]
    return folder


# Npz --------------------------------------------------------------------------------------------------------------


class Arrays(NamedTuple):
    """The content of an .npz file."""

    train: Images
    test: Images | None
    """None if the file holds no test images."""
    classes: tuple[str, ...]


def read_arrays(path: Path, side: int, folder: Path | None = None) -> Arrays:
    """Read `images` and `labels`, and `test_images` and `test_labels` if they exist, from an .npz file.

    Images are uint8, (N, height, width), (N, height, width, channels) or (N, channels, height, width), with one or
    three channels; they are scaled to `side` × `side` pixels as files are. Labels are whole numbers, −1 for none, or
    texts, empty for none. folder: for images that do not fit into memory; see `new_pixels`.

    Example: `read_arrays(Path("data.npz"), 32).train.pixels.shape` is (N, 3, 32, 32).
    """
    with opening(path) as archive:
        names = {info.filename.removesuffix(".npy") for info in archive.infolist()}
        if missing := [name for name in ("images", "labels") if name not in names]:
            raise AggMatchError(
                f"{path} must hold the arrays images and labels, but has no {missing[0]}: it holds "
                f"{', '.join(sorted(map(printable, names))) or 'nothing'}."
            )
        pixels = read_pixels(archive, "images", path, side, folder)
        train_labels = label_texts(read_array(archive, "labels", path), "labels", path)
        given = {label for label in train_labels if label}
        classes = tuple(sorted(given, key=class_order))
        numbers = {name: number for number, name in enumerate(classes)}

        def images(name: str, pixels: Tensor, labels: Sequence[str]) -> Images:
            if len(pixels) != len(labels):
                raise AggMatchError(f"{path} holds {len(pixels)} {name}, but {len(labels)} labels of them.")
            return Images(pixels, torch.tensor([numbers.get(label, UNKNOWN) for label in labels], dtype=torch.int64))

        train = images("images", pixels, train_labels)
        if not {"test_images", "test_labels"} <= names:
            return Arrays(train, None, classes)
        pixels = read_pixels(archive, "test_images", path, side, folder)
        test_labels = label_texts(read_array(archive, "test_labels", path), "test_labels", path)
        if strange := sorted(set(test_labels) - given):
            raise AggMatchError(
                f"test_labels in {path} holds {strange[0] or 'an empty label'}, which no training image has: the "
                f"classes are {', '.join(classes)}."
            )
        return Arrays(train, images("test_images", pixels, test_labels), classes)


def read_array(archive: zipfile.ZipFile, name: str, path: Path) -> NDArray[Any]:
    """Read one array whole."""
    with opened_array(archive, name, path):
        pass
    with archive.open(f"{name}.npy") as stream:
        array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def read_pixels(archive: zipfile.ZipFile, name: str, path: Path, side: int, folder: Path | None) -> Tensor:
    """Read images as uint8, (N, channels, side, side), some at a time: they are never in memory twice."""
    with opened_array(archive, name, path) as (stream, shape, fortran, kind):
        stated: NDArray[Any] = np.broadcast_to(np.zeros((), kind), shape)  # of the same shape, without its memory
        channels = as_pixels(stated, name, path).shape[1]
        pixels = new_pixels((shape[0], channels, side, side), folder)
        if fortran:  # the first bytes belong to all images
            columns = np.frombuffer(stream.read(), kind).reshape(shape, order="F")
            scale_into(pixels, as_pixels(columns, name, path))
            return torch.from_numpy(pixels)
        size = math.prod(shape[1:])
        for first in range(0, shape[0], AT_ONCE):
            some = pixels[first : first + AT_ONCE]
            rows = np.frombuffer(stream.read(len(some) * size), kind).reshape(-1, *shape[1:])
            scale_into(some, as_pixels(rows, name, path))
        stream.read()  # the end of the file, where its checksum is verified
    return torch.from_numpy(pixels)


@contextmanager
def opened_array(
    archive: zipfile.ZipFile, name: str, path: Path
) -> Iterator[tuple[IO[bytes], tuple[int, ...], bool, np.dtype[Any]]]:
    """Within, an array after its header, its shape, whether columns come first, and its type.

    The header is checked first, so that a corrupt one cannot ask for any amount of memory.
    """
    info = archive.getinfo(f"{name}.npy")
    if info.file_size > IN_MEMORY:
        raise AggMatchError(f"{name} in {path} has {info.file_size / 2**30:.0f} GiB, more than {IN_MEMORY // 2**30}.")
    with archive.open(info) as stream:
        shape, fortran, kind = read_header(stream)
        if kind.hasobject:
            raise AggMatchError(f"{name} in {path} holds Python objects, which are not read. Save numbers or texts.")
        if math.prod(shape) * kind.itemsize > info.file_size:
            raise AggMatchError(f"{path} is corrupt ({name} is shorter than its shape {shape}).")
        yield stream, shape, fortran, kind


def class_order(name: str) -> tuple[int, str]:
    """Sort key of class names: numbers by their value, texts by their letters."""
    return (int(name), "") if name.isdecimal() else (0, name)


def label_texts(labels: NDArray[Any], name: str, path: Path) -> list[str]:
    """Return the label of each image as a text, empty if it has none."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iuU":
        raise AggMatchError(
            f"{name} in {path} must be one row of whole numbers or texts, got {labels.dtype} of shape {labels.shape}."
        )
    if labels.dtype.kind == "U":
        texts = [text.strip() for text in labels.tolist()]
        if strange := next((text for text in texts if text != printable(text)), None):
            raise AggMatchError(f"{name} in {path} holds {printable(strange)}, which has control characters.")
        return texts
    if len(labels) and labels.min() < UNKNOWN:
        raise AggMatchError(f"{name} in {path} must be at least 0, or {UNKNOWN} for no label, got {labels.min()}.")
    return ["" if number == UNKNOWN else str(number) for number in labels.tolist()]


def as_pixels(images: NDArray[Any], name: str, path: Path) -> NDArray[np.uint8]:
    """Return images as uint8, (N, channels, height, width)."""
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape[2:]:
        raise AggMatchError(
            f"{name} in {path} must be uint8 of shape (N, height, width), with 1 or 3 channels before or after height "
            f"and width, got {images.dtype} of shape {images.shape}."
        )
    return images


def scale_into(pixels: NDArray[np.uint8], images: NDArray[np.uint8]) -> None:
    """Write images cropped to their centre square and scaled to (N, channels, side, side); unchanged if they fit."""
    channels, height, width = images.shape[1:]
    side = pixels.shape[-1]
    if height == width == side:
        pixels[...] = images
        return
    for own, image in zip(pixels, images, strict=True):
        picture = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0) if channels == 3 else image[0]))
        square = np.asarray(ImageOps.fit(picture, (side, side), Image.Resampling.BICUBIC))
        own[:] = square.transpose(2, 0, 1) if channels == 3 else square[None]
