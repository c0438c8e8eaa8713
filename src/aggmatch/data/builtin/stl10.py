"""STL-10, from the official binary files: the archive as downloaded, or unpacked.

Its 5,000 labelled training images come with ten official folds of 1,000; 100,000 further images have no label, and some
of them belong to none of the classes.
"""

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aggmatch.data.images import UNKNOWN, Archive, Images, Source, corrupt, reading
from aggmatch.data.rows import AT_ONCE, new_pixels

SHAPE = (3, 96, 96)
IMAGE = 3 * 96 * 96
LARGEST = 100_000 * IMAGE
"""Bytes of the largest file, which holds the unlabelled images."""
CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
FOLDER = "stl10_binary"
MEMBERS = ("train_X.bin", "train_y.bin", "unlabeled_X.bin", "test_X.bin", "test_y.bin", "fold_indices.txt")

ARCHIVE = Archive(
    file="stl10_binary.tar.gz",
    url="http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    md5="91f7769df0f17e558f3565bffb0c7dfb",
    size=2_640_397_119,
    members=tuple(f"{FOLDER}/{name}" for name in MEMBERS),
)


def read_stl10(folder: Path) -> tuple[Images, Images]:
    """Training images, the labelled ones first, and test images."""
    pixels: dict[str, NDArray[np.uint8]] = {}
    numbers: dict[str, bytes] = {}
    for member in members(folder, MEMBERS[:-1]):
        part, _, kind = member.name.removesuffix(".bin").partition("_")
        with reading(member.path):
            if kind == "y":
                numbers[part] = member.stream.read()
            else:
                pixels[part] = read_pixels(member, pixels.get("train") if part == "unlabeled" else None)
    given, tested = (labels_of(folder, part, numbers[part], len(pixels[part])) for part in ("train", "test"))
    train = pixels["unlabeled"]
    if list(pixels).index("unlabeled") < list(pixels).index("train"):  # in an archive in another order
        train = np.concatenate([pixels["train"], train])
    labels = torch.cat([given, torch.full((len(train) - len(given),), UNKNOWN)])
    return Images(torch.from_numpy(train), labels), Images(torch.from_numpy(pixels["test"]), tested)


def read_folds(folder: Path) -> tuple[tuple[int, ...], ...]:
    """The official folds: positions of labelled images among the training images."""
    lines: list[str] = []
    for member in members(folder, MEMBERS[-1:]):
        with reading(member.path):
            lines = member.stream.read().decode(errors="replace").splitlines()
    try:
        folds = tuple(tuple(map(int, line.split())) for line in lines if line.strip())
    except ValueError as error:
        raise corrupt(folder / FOLDER / "fold_indices.txt", error) from None
    return folds


class Member(NamedTuple):
    """An official file."""

    name: str
    path: Path
    """The file itself, or the archive that it is in."""
    stream: IO[bytes]
    size: int
    """Bytes."""


def members(folder: Path, only: tuple[str, ...]) -> Iterator[Member]:
    """Yield the official files with these names, from the unpacked folder or in one pass through the archive.

    Read each one before the next. Raises an `AggMatchError` if a file is missing or too large.
    """
    if ARCHIVE.unpacked(folder):
        for name in only:
            path = folder / FOLDER / name
            with reading(path), path.open("rb") as stream:
                yield Member(name, path, stream, path.stat().st_size)
        return
    path, found = folder / ARCHIVE.file, set()
    with reading(path), tarfile.open(path, "r|gz") as tar:
        for entry in tar:
            name = Path(entry.name).name
            file: IO[bytes] | None = tar.extractfile(entry) if name in only and entry.isfile() else None
            if file is not None:
                if entry.size > LARGEST:
                    raise corrupt(path, f"{name} has {entry.size:,} bytes instead of at most {LARGEST:,}")
                found.add(name)
                yield Member(name, path, file, entry.size)
    for name in only:
        if name not in found:
            raise corrupt(path, f"it lacks {name}")


def labels_of(folder: Path, part: str, content: bytes, count: int) -> Tensor:
    """The labels of `train` or `test`, (N,), which the files count from 1."""
    labels: NDArray[np.uint8] = np.frombuffer(content, np.uint8)
    if len(labels) != count:
        raise corrupt(folder / FOLDER / f"{part}_y.bin", f"it holds {len(labels)} labels for {count} images")
    if not np.isin(labels, np.arange(1, len(CLASSES) + 1)).all():
        raise corrupt(folder / FOLDER / f"{part}_y.bin", f"its labels are not all in [1, {len(CLASSES)}]")
    return torch.from_numpy(labels.astype(np.int64) - 1)


def read_pixels(member: Member, before: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
    """Images (N, 3, 96, 96) from a file in which every channel is stored column by column.

    before: images that come first in the result. Some images are read at a time, so that none is in memory twice.
    """
    size = member.size
    if not size or size % IMAGE:
        problem = f"{member.name} has {size} bytes, which are not a number of images of {IMAGE} bytes"
        raise corrupt(member.path, problem)
    first = 0 if before is None else len(before)
    pixels = new_pixels((first + size // IMAGE, *SHAPE))
    if before is not None:
        pixels[:first] = before
    for some in np.split(pixels[first:], range(AT_ONCE, size // IMAGE, AT_ONCE)):
        content = member.stream.read(some.nbytes)
        if len(content) < some.nbytes:
            raise corrupt(member.path, f"{member.name} is cut short")
        some[...] = np.frombuffer(content, np.uint8).reshape(some.shape).transpose(0, 1, 3, 2)
    return pixels


STL10 = Source(
    name="stl10",
    description="STL-10: photographs of 96×96 pixels, 5,000 labelled and 100,000 unlabelled.",
    classes=CLASSES,
    shape=SHAPE,
    train_size=105_000,
    test_size=8_000,
    mirror=True,
    read=read_stl10,
    archives=(ARCHIVE,),
    noise_map={"truck": "car", "bird": "airplane", "deer": "horse", "cat": "dog", "dog": "cat"},
    folds=read_folds,
)
