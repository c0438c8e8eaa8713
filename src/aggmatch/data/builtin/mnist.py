"""MNIST and Fashion-MNIST, from the official idx files: gzipped as downloaded, or unpacked.

Both data sets use the same file names, so each has a folder of its own: `mnist/` and `fashion-mnist/`.
"""

import gzip
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from aggmatch.data.builtin.digits import DIGIT_NAMES, DIGIT_NOISE
from aggmatch.data.images import Archive, Images, Source, corrupt, reading

SHAPE = (1, 28, 28)
CLASSES = 10
IDX_UINT8 = 0x08
"""Code of unsigned bytes in the header of an idx file."""


def read_mnist(folder: Path, archives: tuple[Archive, ...]) -> tuple[Images, Images]:
    """Training and test images; `archives` are training images and labels, then test images and labels."""
    train_pixels, train_labels, test_pixels, test_labels = archives
    return read_part(folder, train_pixels, train_labels), read_part(folder, test_pixels, test_labels)


def read_part(folder: Path, pixel_archive: Archive, label_archive: Archive) -> Images:
    """Images and labels of one part."""
    pixels, _ = read_idx(folder, pixel_archive, dimensions=3)
    labels, path = read_idx(folder, label_archive, dimensions=1)
    if pixels.shape[1:] != SHAPE[1:]:
        raise corrupt(folder / pixel_archive.file, f"its images have {pixels.shape[1:]} instead of {SHAPE[1:]} pixels")
    if len(pixels) != len(labels):
        raise corrupt(path, f"it holds {len(labels)} labels for {len(pixels)} images")
    if len(labels) and labels.max() >= CLASSES:
        raise corrupt(path, f"label {labels.max()} is not in [0, {CLASSES - 1}]")
    return Images(torch.from_numpy(pixels)[:, None], torch.from_numpy(labels.astype(np.int64)))


def read_idx(folder: Path, archive: Archive, dimensions: int) -> tuple[NDArray[np.uint8], Path]:
    """The array of unsigned bytes in an idx file, and the file that it was read from.

    Header: two zero bytes, the code of the type, the number of dimensions, then each size as four bytes, big-endian.
    """
    unpacked = archive.unpacked(folder)
    path = folder / (archive.members[0] if unpacked else archive.file)
    with reading(path), path.open("rb") if unpacked else gzip.open(path) as file:
        header = file.read(4 + 4 * dimensions)
        if header[:4] != bytes([0, 0, IDX_UINT8, dimensions]) or len(header) < 4 + 4 * dimensions:
            raise corrupt(path, f"it is not an idx file of unsigned bytes with {dimensions} dimensions")
        shape = tuple(int.from_bytes(header[start : start + 4], "big") for start in range(4, len(header), 4))
        size = math.prod(shape)
        content = file.read(min(size, 2**31) + 1)  # a corrupt size must not ask for all memory
        if len(content) != size:
            raise corrupt(path, f"it holds {len(content)} values instead of {size}")
    return np.frombuffer(content, np.uint8).reshape(shape).copy(), path


def archives(
    folder: str, home: str, files: dict[str, tuple[str, int]], contents: Mapping[str, str] | None = None
) -> tuple[Archive, ...]:
    """The published files of a data set: name → (MD5, bytes). contents: name → MD5 of the content, where known."""
    known = contents or {}
    return tuple(
        Archive(f"{folder}/{name}.gz", f"{home}{name}.gz", md5, size, (f"{folder}/{name}",), known.get(name))
        for name, (md5, size) in files.items()
    )


MNIST_FILES = archives(
    "mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    {
        "train-images-idx3-ubyte": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
        "train-labels-idx1-ubyte": ("d53e105ee54ea40749a09fcbcd1e9432", 28_881),
        "t10k-images-idx3-ubyte": ("9fb629c4189551a2d022fa330f9573f3", 1_648_877),
        "t10k-labels-idx1-ubyte": ("ec29112dd5afa0611ce80d1b7f02629c", 4_542),
    },
)
FASHION_FILES = archives(
    "fashion-mnist",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    {
        "train-images-idx3-ubyte": ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
        "train-labels-idx1-ubyte": ("25c81989df183df01b3e8a0aad5dffbe", 29_515),
        "t10k-images-idx3-ubyte": ("bef4ecab320f06d8554ea6380940ec79", 4_422_102),
        "t10k-labels-idx1-ubyte": ("bb300cfdad3c16e7a12a480ee83cd310", 5_148),
    },
    # Of Debian's package dataset-fashion-mnist, whose files become the published ones, byte by byte, if name and time
    # are put back into their headers.
    {
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
)
FASHION_CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle_boot")

MNIST = Source(
    name="mnist",
    description="MNIST: handwritten digits of 28×28 pixels.",
    classes=DIGIT_NAMES,
    shape=SHAPE,
    train_size=60_000,
    test_size=10_000,
    mirror=False,
    read=partial(read_mnist, archives=MNIST_FILES),
    archives=MNIST_FILES,
    noise_map=DIGIT_NOISE,
)
FASHION_MNIST = Source(
    name="fashion-mnist",
    description="Fashion-MNIST: clothes of 28×28 grey pixels.",
    classes=FASHION_CLASSES,
    shape=SHAPE,
    train_size=60_000,
    test_size=10_000,
    mirror=True,
    read=partial(read_mnist, archives=FASHION_FILES),
    archives=FASHION_FILES,
)
