"""CIFAR-10 and CIFAR-100 in the official Python version, read from the downloaded archive or from unpacked files."""

import gzip
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aggmatch.data.builtin.pickles import read_pickle
from aggmatch.data.images import Archive, Images, Source, corrupt, reading

SHAPE = (3, 32, 32)
HOME = "https://www.cs.toronto.edu/~kriz/"


def read_cifar(folder: Path, archive: Archive, label_key: bytes, classes: int) -> tuple[Images, Images]:
    """Return training and test images; the last member of the archive is the test batch."""
    batches = _unpacked_batches(folder, archive) if archive.unpacked(folder) else _packed_batches(folder, archive)
    *train, test = (_images(*batch, label_key, classes) for batch in batches)
    return Images(torch.cat([part.pixels for part in train]), torch.cat([part.labels for part in train])), test


def _unpacked_batches(folder: Path, archive: Archive) -> list[tuple[Path, Any]]:
    """Return (file, content) of each member, in the order of `archive.members`."""
    batches = []
    for member in archive.members:
        path = folder / member
        with reading(path), path.open("rb") as file:
            batches.append((path, read_pickle(file, path)))
    return batches


def _packed_batches(folder: Path, archive: Archive) -> list[tuple[Path, Any]]:
    """Return (archive, content) of each member, in the order of `archive.members`; nothing is unpacked to disk."""
    path = folder / archive.file
    found: dict[str, Any] = {}
    with reading(path), gzip.open(path) as stream:
        with tarfile.open(fileobj=stream, mode="r:") as tar:
            # One pass in the archive's own order: to go back means to decompress again from the start.
            for entry in tar:
                if entry.name in archive.members and (file := tar.extractfile(entry)):
                    found[entry.name] = read_pickle(file, f"{path} ({entry.name})")
        # The checksum comes last: only reading to the end detects a flipped bit.
        while stream.read(1 << 20):
            pass
    for member in archive.members:
        if member not in found:
            raise corrupt(path, f"it lacks {member}")
    return [(path, found[member]) for member in archive.members]


def _images(path: Path, batch: Any, label_key: bytes, classes: int) -> Images:
    """Check and convert one official batch, {b"data": N × 3072 uint8, label_key: N numbers}; errors name `path`."""
    if not isinstance(batch, Mapping) or b"data" not in batch or label_key not in batch:
        raise corrupt(path, f"a batch lacks 'data' or '{label_key.decode()}'")
    pixels, labels = batch[b"data"], batch[label_key]
    width = SHAPE[0] * SHAPE[1] * SHAPE[2]
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != width:
        found = f"{pixels.dtype} of shape {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise corrupt(path, f"a batch holds {found} instead of uint8 pixels of shape (N, {width})")
    if not isinstance(labels, list) or len(labels) != len(pixels):
        raise corrupt(path, f"a batch of {len(pixels)} images does not hold {len(pixels)} labels")
    for label in labels:
        if type(label) is not int or not 0 <= label < classes:
            raise corrupt(path, f"label {label!r} is not a whole number in [0, {classes - 1}]")
    # A copy, in native layout: an unpickled array may be read-only or strided.
    return Images(torch.from_numpy(pixels.copy()).view(-1, *SHAPE), torch.tensor(labels, dtype=torch.int64))


CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FINE_CLASSES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm"""
CIFAR100_CLASSES = tuple(FINE_CLASSES.split())

CIFAR10_ARCHIVE = Archive(
    "cifar-10-python.tar.gz",
    HOME + "cifar-10-python.tar.gz",
    md5="c58f30108f718f92721af3b95e74349a",
    size=170_498_071,
    members=(*(f"cifar-10-batches-py/data_batch_{n}" for n in range(1, 6)), "cifar-10-batches-py/test_batch"),
)
CIFAR100_ARCHIVE = Archive(
    "cifar-100-python.tar.gz",
    HOME + "cifar-100-python.tar.gz",
    md5="eb9058c3a382ffc7106e4002c42a8d85",
    size=169_001_437,
    members=("cifar-100-python/train", "cifar-100-python/test"),
)

CIFAR10 = Source(
    name="cifar10",
    description="CIFAR-10: photographs of 32×32 pixels, animals and vehicles.",
    classes=CIFAR10_CLASSES,
    shape=SHAPE,
    train_size=50_000,
    test_size=10_000,
    mirror=True,
    read=partial(read_cifar, archive=CIFAR10_ARCHIVE, label_key=b"labels", classes=10),
    archives=(CIFAR10_ARCHIVE,),
    noise_map={"truck": "automobile", "bird": "airplane", "deer": "horse", "cat": "dog", "dog": "cat"},
)
CIFAR100 = replace(
    CIFAR10,
    name="cifar100",
    description="CIFAR-100: photographs of 32×32 pixels, with the 100 fine classes.",
    classes=CIFAR100_CLASSES,
    read=partial(read_cifar, archive=CIFAR100_ARCHIVE, label_key=b"fine_labels", classes=100),
    archives=(CIFAR100_ARCHIVE,),
    noise_map={},
)
