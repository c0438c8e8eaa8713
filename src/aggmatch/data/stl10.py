"""STL-10, from the official binary files: the archive as downloaded, or unpacked.

Its 5,000 labelled training images come with ten official folds of 1,000; 100,000 further images have no label, and some
of them belong to none of the classes.
"""

import tarfile
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray

from aggmatch.data.images import UNKNOWN, Archive, Images, Source, corrupt, reading

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
    content = read_members(folder)
    train, test = (labeled_images(folder, content, part) for part in ("train", "test"))
    unlabeled = pixels_of(folder, "unlabeled_X.bin", content["unlabeled_X.bin"])
    labels = torch.cat([train.labels, torch.full((len(unlabeled),), UNKNOWN)])
    return Images(torch.cat([train.pixels, unlabeled]), labels), test


def read_folds(folder: Path) -> tuple[tuple[int, ...], ...]:
    """The official folds: positions of labelled images among the training images."""
    lines = read_members(folder, only=("fold_indices.txt",))["fold_indices.txt"].decode(errors="replace").splitlines()
    try:
        folds = tuple(tuple(map(int, line.split())) for line in lines if line.strip())
    except ValueError as error:
        raise corrupt(folder / FOLDER / "fold_indices.txt", error) from None
    return folds


def read_members(folder: Path, only: tuple[str, ...] = MEMBERS) -> dict[str, bytes]:
    """The content of the official files by name, from the unpacked folder or in one pass through the archive."""
    found: dict[str, bytes] = {}
    if ARCHIVE.unpacked(folder):
        for name in only:
            path = folder / FOLDER / name
            with reading(path):
                found[name] = path.read_bytes()
        return found
    path = folder / ARCHIVE.file
    with reading(path), tarfile.open(path, "r|gz") as tar:
        for entry in tar:
            name = Path(entry.name).name
            file: IO[bytes] | None = tar.extractfile(entry) if name in only and entry.isfile() else None
            if file is not None:
                if entry.size > LARGEST:
                    raise corrupt(path, f"{name} has {entry.size:,} bytes instead of at most {LARGEST:,}")
                found[name] = file.read()
    for name in only:
        if name not in found:
            raise corrupt(path, f"it lacks {name}")
    return found


def labeled_images(folder: Path, content: dict[str, bytes], part: str) -> Images:
    """The images of `train` or `test` with their labels, which the files count from 1."""
    pixels = pixels_of(folder, f"{part}_X.bin", content[f"{part}_X.bin"])
    labels: NDArray[np.uint8] = np.frombuffer(content[f"{part}_y.bin"], np.uint8)
    if len(labels) != len(pixels):
        raise corrupt(folder / FOLDER / f"{part}_y.bin", f"it holds {len(labels)} labels for {len(pixels)} images")
    if not np.isin(labels, np.arange(1, len(CLASSES) + 1)).all():
        raise corrupt(folder / FOLDER / f"{part}_y.bin", f"its labels are not all in [1, {len(CLASSES)}]")
    return Images(pixels, torch.from_numpy(labels.astype(np.int64) - 1))


def pixels_of(folder: Path, name: str, content: bytes) -> torch.Tensor:
    """Images (N, 3, 96, 96) from bytes in which every channel is stored column by column."""
    if not content or len(content) % IMAGE:
        raise corrupt(folder / FOLDER / name, f"its {len(content)} bytes are not a number of images of {IMAGE} bytes")
    columns = np.frombuffer(content, np.uint8).reshape(-1, *SHAPE)
    return torch.from_numpy(np.ascontiguousarray(columns.transpose(0, 1, 3, 2)))


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
