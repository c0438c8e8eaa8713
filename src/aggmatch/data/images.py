"""What a data set is once it is read, and what is known about one before that."""

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

from aggmatch.errors import AggMatchError

UNKNOWN = -1
"""The label of an image whose class is not known."""


@dataclass(frozen=True, eq=False)
class Images:
    """Images and their classes, in one order."""

    pixels: Tensor
    """uint8, images × channels × height × width."""
    labels: Tensor
    """int64, one for each image: the number of its class, or −1 where that is not known."""
    names: tuple[str, ...] = ()
    """What each image is called, such as its file; empty where they have numbers alone."""

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4:
            raise AggMatchError(f"Pixels must be uint8 and N × C × H × W, got {_sketch(self.pixels)}.")
        if self.labels.dtype != torch.int64 or self.labels.shape != self.pixels.shape[:1]:
            raise AggMatchError(
                f"Labels must be int64, one for each of {len(self)} images, got {_sketch(self.labels)}."
            )
        if self.names and len(self.names) != len(self):
            raise AggMatchError(f"Names must be one for each of {len(self)} images or none, got {len(self.names)}.")

    def __len__(self) -> int:
        return len(self.pixels)

    def to(self, device: torch.device | str) -> Self:
        """The same images on `device`."""
        return type(self)(self.pixels.to(device), self.labels.to(device), self.names)

    def take(self, positions: Sequence[int]) -> Self:
        """Some of the images, in the given order."""
        index = torch.tensor(positions, dtype=torch.int64)
        names = tuple(self.names[position] for position in positions) if self.names else ()
        return replace(self, pixels=self.pixels[index], labels=self.labels[index], names=names)

    def call(self, index: int) -> str:
        """What an image is called, or else its number."""
        return self.names[index] if self.names else str(index)

    def find(self, word: str) -> int:
        """The number of the image that a word means: a number, a name, or the end of one, from a slash on."""
        meant = [index for index, name in enumerate(self.names) if name == word]
        meant = meant or [index for index, name in enumerate(self.names) if name.endswith(f"/{word}")]
        if not meant and word.isdecimal() and int(word) < len(self):
            meant = [int(word)]
        if not meant:
            known = f", called for example '{self.names[0]}'" if self.names else ""
            raise AggMatchError(f"There is no image '{word}' among those numbered 0 to {len(self) - 1}{known}.")
        if len(meant) > 1:
            listed = ", ".join(map(self.call, meant[:3])) + (", ..." if len(meant) > 3 else "")
            raise AggMatchError(f"{len(meant)} images are called '{word}': {listed}.")
        return meant[0]


@dataclass(frozen=True, eq=False)
class DataSet:
    """Images to train on, images to test on, and what their classes mean."""

    name: str
    train: Images
    test: Images
    classes: tuple[str, ...]
    mirror: bool
    """Whether an image keeps its class when flipped left to right."""
    noise_map: Mapping[str, str] = field(default_factory=dict)
    """Class → the class its images are mistaken for under asymmetric noise; empty where none is established."""
    folds: tuple[tuple[int, ...], ...] = ()
    """Official choices of labelled images, each as positions among the training images; empty if there are none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(self.classes))
        if len(set(self.classes)) < len(self.classes):
            raise AggMatchError(f"The classes of {self.name} must differ from each other, got {self.classes}.")
        if self.train.pixels.shape[1:] != self.test.pixels.shape[1:]:
            raise AggMatchError(
                f"Training and test images of {self.name} must have one size, "
                f"got {_sketch(self.train.pixels)} and {_sketch(self.test.pixels)}."
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
        """A hash of classes, training labels and training images: the numbers of a split mean these and no others."""
        return _fingerprint(self.classes, self.train)

    @cached_property
    def test_fingerprint(self) -> str:
        """A hash of classes, test labels and test images: an accuracy is of these and no others."""
        return _fingerprint(self.classes, self.test)


def _fingerprint(classes: tuple[str, ...], images: Images) -> str:
    digest = hashlib.sha256(json.dumps(classes).encode())
    for tensor in (images.labels, images.pixels):
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _sketch(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


@dataclass(frozen=True)
class Archive:
    """A published file: where it comes from, and how to tell that it arrived whole."""

    file: str
    url: str
    md5: str
    size: int
    """Bytes."""
    members: tuple[str, ...] = ()
    """The files needed out of it, where it is a packed one. Unpacked beside it, they do as well."""

    def unpacked(self, folder: Path) -> bool:
        """Whether all the files needed lie unpacked in `folder`."""
        return bool(self.members) and all((folder / member).is_file() for member in self.members)

    def present(self, folder: Path) -> bool:
        """Whether `folder` holds it, packed or unpacked. Content is not looked at."""
        return self.unpacked(folder) or (folder / self.file).is_file()

    def wanted(self, folder: Path) -> str:
        """What was looked for, for the message that it is not there."""
        if not self.members:
            return self.file
        unpacked = Path(self.members[0]).parts[0]
        if not (folder / unpacked).is_dir():
            return f"{self.file} (or the folder {unpacked})"
        lost = ", ".join(Path(member).name for member in self.members if not (folder / member).is_file())
        return f"{self.file} (the folder {unpacked} is there but lacks {lost})"


@dataclass(frozen=True)
class Source:
    """A data set known by name. `read(folder)` gives its training and test images, or an error that says what to do."""

    name: str
    description: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    """Channels, height, width."""
    train_size: int
    test_size: int
    mirror: bool
    read: Callable[[Path], tuple[Images, Images]]
    archives: tuple[Archive, ...] = ()
    """The files it is read from; none where it comes with a package."""
    noise_map: Mapping[str, str] = field(default_factory=dict)
    folds: Callable[[Path], tuple[tuple[int, ...], ...]] | None = None
    """Reads the official folds, if it has any; see `DataSet.folds`."""

    def missing(self, folder: Path) -> list[Archive]:
        """The archives that `folder` does not hold."""
        return [archive for archive in self.archives if not archive.present(folder)]

    def present(self, folder: Path) -> bool:
        """Whether `read(folder)` has all it needs."""
        return not self.missing(folder)


def damaged(path: Path, why: object) -> AggMatchError:
    """The error for a file whose content is not what was published."""
    return AggMatchError(f"{path} is damaged ({why}). Delete it and fetch it again with --download.")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a parser throws at a file into one sentence that names the file.

    Unpicklers, inflaters and .mat readers throw nearly any exception at garbage, so all are caught here, and only here.
    """
    try:
        yield
    except AggMatchError:
        raise
    except MemoryError:
        raise AggMatchError(f"Not enough memory to read {path}, or it is damaged.") from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise AggMatchError(f"Cannot read {path}: {error.strerror}.") from None
        raise damaged(path, str(error).rstrip(".") or type(error).__name__) from None
