"""Data sets in memory (`Images`, `DataSet`), and what is known about a data set before it is read (`Source`)."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from aggmatch.data.rows import AT_ONCE, copy_rows
from aggmatch.errors import AggMatchError
from aggmatch.tables import plural
from aggmatch.validate import is_text

UNKNOWN = -1
"""The label of an image whose class is not known."""


@dataclass(frozen=True, eq=False, repr=False)
class Images:
    """N images with their labels, in one order.

    Example: `Images(torch.zeros(5, 3, 32, 32, dtype=torch.uint8), torch.zeros(5, dtype=torch.int64))`.
    """

    pixels: Tensor
    """uint8, (N, channels, height, width)."""
    labels: Tensor
    """int64, (N,): the class number of each image, or −1 if its class is not known."""
    names: tuple[str, ...] = ()
    """A name for each image, such as its file; empty if images have only numbers."""

    def __post_init__(self) -> None:
        for what, part in (("Pixels", self.pixels), ("Labels", self.labels)):
            if not isinstance(part, Tensor):
                problem = f"{what} must be a torch tensor, got {type(part).__name__}"
                raise AggMatchError(f"{problem}. Convert an array with torch.from_numpy.")
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4:
            raise AggMatchError(f"Pixels must be uint8 of shape (N, C, H, W), got {_summary(self.pixels)}.")
        if self.labels.dtype != torch.int64 or self.labels.shape != self.pixels.shape[:1]:
            raise AggMatchError(
                f"Labels must be int64, one for each of {len(self)} images, got {_summary(self.labels)}."
            )
        if self.names and len(self.names) != len(self):
            raise AggMatchError(f"Names must be empty or one for each of {len(self)} images, got {len(self.names)}.")

    def __len__(self) -> int:
        return len(self.pixels)

    def __repr__(self) -> str:
        count, labeled = len(self), int((self.labels != UNKNOWN).sum())
        return f"<Images: {plural(count, 'image')} of {_size(self.pixels)}, {labeled:,} with a label>"

    @property
    def inputs(self) -> Tensor:
        """What a network takes: the pixels."""
        return self.pixels

    def to(self, device: torch.device | str) -> Self:
        """Return the same images on `device`."""
        return type(self)(self.pixels.to(device), self.labels.to(device), self.names)

    def digests(self) -> list[str]:
        """Return a hash of the pixels of each image, which stays when a file moves or gets a label."""
        return [hashlib.blake2b(image.tobytes(), digest_size=16).hexdigest() for image in self.pixels.cpu().numpy()]

    def take(self, positions: Sequence[int]) -> Self:
        """Return the images at these positions, in the given order."""
        names = tuple(self.names[position] for position in positions) if self.names else ()
        labels = self.labels[torch.tensor(positions, dtype=torch.int64)]
        return replace(self, pixels=copy_rows([self.pixels], positions), labels=labels, names=names)

    def call(self, index: int) -> str:
        """Return the name of an image, or its number if it has no name."""
        return self.names[index] if self.names else str(index)

    def find(self, word: str) -> int:
        """Return the number of the image with this name, with a name that ends in `/word`, or with this number.

        Raises `AggMatchError` if no image or more than one image matches.
        """
        found = [index for index, name in enumerate(self.names) if name == word]
        found = found or [index for index, name in enumerate(self.names) if name.endswith(f"/{word}")]
        if not found and word.isdecimal() and int(word) < len(self):
            found = [int(word)]
        if not found:
            example = f"; a name is, for example, '{self.names[0]}'" if self.names else ""
            raise AggMatchError(f"There is no image '{word}'. Images have numbers from 0 to {len(self) - 1}{example}.")
        if len(found) > 1:
            listed = ", ".join(map(self.call, found[:3])) + (", ..." if len(found) > 3 else "")
            raise AggMatchError(f"{len(found)} images are called '{word}': {listed}. Give a longer part of the path.")
        return found[0]


@dataclass(frozen=True, eq=False, repr=False)
class DataSet:
    """Images to train on, images to test on, and the names of their classes.

    Example: `DataSet("mine", train, test, classes=("cat", "dog"), mirror=True)` with two `Images` of the same size.
    """

    name: str
    train: Images
    """Training images; those without a known class have the label −1."""
    test: Images
    """Test images, all with a label."""
    classes: tuple[str, ...]
    """Class names; a label is a position in this tuple."""
    mirror: bool
    """Whether a horizontal flip preserves the class."""
    noise_map: Mapping[str, str] = field(default_factory=dict)
    """For asymmetric label noise: a class → the class it is confused with. Empty if there is no usual choice."""
    folds: tuple[tuple[int, ...], ...] = ()
    """Official choices of labelled images, each as positions among the training images; usually empty."""

    def __repr__(self) -> str:
        counts = f"{len(self.train):,} training and {len(self.test):,} test images of {_size(self.train.pixels)}"
        return f"<DataSet {self.name}: {len(self.classes)} classes, {counts}>"

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(self.classes))
        if len(set(self.classes)) < len(self.classes):
            raise AggMatchError(f"The class names of {self.name} must differ, got {self.classes}.")
        for name in self.classes:
            if not isinstance(name, str) or not is_text(name):
                raise AggMatchError(
                    f"A class of {self.name} has a name that no file can hold, {name!a}. Rename it in UTF-8."
                )
        if self.train.pixels.shape[1:] != self.test.pixels.shape[1:]:
            raise AggMatchError(
                f"Training and test images of {self.name} must have the same size, "
                f"got {_summary(self.train.pixels)} and {_summary(self.test.pixels)}."
            )
        for part in (self.train, self.test):
            if len(part) and not UNKNOWN <= int(part.labels.min()) <= int(part.labels.max()) < len(self.classes):
                raise AggMatchError(
                    f"Labels of {self.name} must be in [{UNKNOWN}, {len(self.classes) - 1}], "
                    f"got {int(part.labels.min())} to {int(part.labels.max())}."
                )
        if len(self.test) and int(self.test.labels.min()) == UNKNOWN:
            raise AggMatchError(f"Every test image of {self.name} must have a label, got {UNKNOWN} among them.")

    @cached_property
    def fingerprint(self) -> str:
        """Hash of class names, training labels and training images, which the indices of a split refer to."""
        return _fingerprint(self.classes, self.train)

    @cached_property
    def test_fingerprint(self) -> str:
        """Hash of class names, test labels and test images, which an accuracy refers to."""
        return _fingerprint(self.classes, self.test)


def _fingerprint(classes: tuple[str, ...], images: Images) -> str:
    digest = hashlib.sha256(json.dumps(classes).encode())
    for tensor in (images.labels, images.pixels):
        for some in tensor.split(AT_ONCE):  # the bytes of all images would be a copy of them
            digest.update(some.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _summary(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def _size(pixels: Tensor) -> str:
    channels, height, width = pixels.shape[1:]
    return f"{height}×{width}×{channels}"


@dataclass(frozen=True)
class Archive:
    """A published file: its address, and how to check that it arrived complete."""

    file: str
    """Its name in the data folder."""
    url: str
    md5: str
    """MD5 of the whole file, in hexadecimal."""
    size: int
    """Bytes."""
    members: tuple[str, ...] = ()
    """For a packed archive, the files that are read from it. They may also be unpacked in the data folder."""
    content_md5: str | None = None
    """MD5 of what a .gz file holds, which is the same for every packing of it; None if unknown."""

    def unpacked(self, folder: Path) -> bool:
        """Whether `folder` holds all members as unpacked files."""
        return bool(self.members) and all((folder / member).is_file() for member in self.members)

    def present(self, folder: Path) -> bool:
        """Whether `folder` holds the archive, packed or unpacked. The content is not checked."""
        return self.unpacked(folder) or (folder / self.file).is_file()

    def wanted(self, folder: Path) -> str:
        """Describe the missing files, for an error message."""
        if not self.members:
            return self.file
        unpacked = Path(self.members[0]).parts[0]
        if not (folder / unpacked).is_dir():
            return f"{self.file} (or the folder {unpacked})"
        missing = ", ".join(Path(member).name for member in self.members if not (folder / member).is_file())
        return f"{self.file} (the folder {unpacked} exists but lacks {missing})"


@dataclass(frozen=True)
class Source:
    """A data set that can be named: its description, and the function that reads it.

    A file with a `Source` makes a data set of your own available as `path/to/file.py:NAME`, and an installed package
    makes one available by name through the entry point group `aggmatch.data`.

    Example: `Source("two", "Two classes.", ("a", "b"), (3, 32, 32), 1000, 200, mirror=True, read=read_two)`.
    """

    name: str
    """Short name for messages."""
    description: str
    """One sentence for `aggmatch list data`."""
    classes: tuple[str, ...]
    """Class names; a label is a position in this tuple."""
    shape: tuple[int, int, int]
    """Channels (1 or 3), height and width of an image; height and width are equal."""
    train_size: int
    """Number of training images."""
    test_size: int
    """Number of test images."""
    mirror: bool
    """Whether a horizontal flip preserves the class."""
    read: Callable[[Path], tuple[Images, Images]]
    """Takes the data folder (`--data-dir`); returns the training images and the test images."""
    archives: tuple[Archive, ...] = ()
    """Files that must be in the data folder before `read` is called, and that `--download` fetches."""
    noise_map: Mapping[str, str] = field(default_factory=dict)
    """For asymmetric label noise: a class → the class it is confused with. Empty if there is no usual choice."""
    folds: Callable[[Path], tuple[tuple[int, ...], ...]] | None = None
    """Reads the official folds from the data folder, if there are any; see `DataSet.folds`."""

    def missing(self, folder: Path) -> list[Archive]:
        """Return the archives that `folder` lacks."""
        return [archive for archive in self.archives if not archive.present(folder)]

    def present(self, folder: Path) -> bool:
        """Whether `folder` holds every archive."""
        return not self.missing(folder)


def corrupt(path: Path, reason: object) -> AggMatchError:
    """Return the error for a file whose content is not what was published."""
    return AggMatchError(f"{path} is corrupt ({reason}). Delete it and download it again.", options="--download")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn every exception of a parser into an `AggMatchError` that names the file.

    Unpicklers, decompressors and .mat readers raise almost any exception for invalid content, so all are caught here.
    """
    try:
        yield
    except AggMatchError:
        raise
    except MemoryError:
        raise AggMatchError(f"There is not enough memory to read {path}, or the file is corrupt.") from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise AggMatchError(f"Cannot read {path}: {error.strerror}.") from None
        raise corrupt(path, str(error).rstrip(".") or type(error).__name__) from None


def check_images(images: Tensor, what: str = "Images") -> None:
    """Raise `AggMatchError` unless the images are uint8 of shape (N, 1 or 3, side, side)."""
    if not isinstance(images, Tensor):
        raise AggMatchError(f"{what} must be a torch tensor, got {type(images).__name__}.")
    shape = tuple(images.shape)
    if images.dtype != torch.uint8 or len(shape) != 4 or shape[1] not in (1, 3) or shape[2] != shape[3]:
        kind = str(images.dtype).removeprefix("torch.")
        raise AggMatchError(f"{what} must be uint8 of shape (N, 1 or 3, side, side), got {kind} of shape {shape}.")
