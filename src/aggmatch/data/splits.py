"""Splits: which training images come with a label, and with which label; and the files that store them."""

import json
import os
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from reprlib import repr as shorten
from typing import Annotated, Any, Literal, NotRequired, Self, TypedDict

import torch
from torch import Tensor

from aggmatch.config import Count, Fraction, Natural, Range, Settings
from aggmatch.data.images import UNKNOWN, DataSet, Images
from aggmatch.data.noise import parse_map
from aggmatch.data.rows import copy_rows
from aggmatch.errors import AggMatchError
from aggmatch.storage.files import digest_of, is_intact, sealed, write_atomically
from aggmatch.validate import InvalidValue, read_json

Imbalance = Annotated[float, Range(1)]
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class DataSettings(Settings):
    """Section `data`: the data set of a run, and how its labels are chosen."""

    name: str = "digits"
    """Data set: one of `aggmatch list data`, a folder, .zip or .npz of images, or `path/to/file.py:NAME`."""
    labels_file: str | None = None
    """Table with the columns file and label for a folder of images; null if its subfolders are the classes."""
    labels: Count | None = 40
    """Number of labelled images, equally many of each class; null for all labels of the data set."""
    side: Annotated[int, Range(8, 1024)] = 32
    """Height and width in pixels to which own images are scaled; other data sets have a fixed size."""
    holdout: Annotated[float, Range(0, 0.9)] = 0.2
    """Share of the labelled images of each class that become test images if own images have none; 0 for no test."""
    test_images: str | None = None
    """A run folder, or its split.json: its test images stay the test images of a folder without test images, however
    many labels the folder has gained; null to choose them by holdout."""
    fold: Natural = 0
    """Seed of the choice of labels. The mean ± std of a table is over folds 0, 1 and 2."""
    split: str | None = None
    """A split.json, or a run folder with one, to reuse instead of drawing a split; it also sets labels and fold."""
    labeled_imbalance: Imbalance = 1.0
    """Labelled images of the first class divided by those of the last; above 1 the classes form a long tail."""
    unlabeled_imbalance: Imbalance = 1.0
    """The same for unlabelled images; at 1 all training images are used as unlabelled ones, labelled ones included."""
    noise: Literal["none", "symmetric", "asymmetric"] = "none"
    """Wrong labels: none, of any other class (symmetric), or of the class given by noise_map (asymmetric)."""
    noise_rate: Fraction = 0.0
    """Share of wrong labels in each class that has noise."""
    noise_map: tuple[str, ...] = ()
    """Asymmetric noise as items such as "cat>dog"; empty for the map of the data set."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise == "none" and self.noise_rate > 0:
            raise InvalidValue("noise_rate", f"needs data.noise=symmetric or asymmetric, got {self.noise_rate}")
        if self.noise != "none" and self.noise_rate == 0:
            raise InvalidValue("noise_rate", f"must be above 0 with {self.noise} noise, got {self.noise_rate}")
        if self.noise_map and self.noise != "asymmetric":
            raise InvalidValue("noise_map", f"needs asymmetric noise, got {self.noise}")
        if self.noise_map:
            parse_map(self.noise_map)
        if self.split is not None:
            for name in ("labeled_imbalance", "unlabeled_imbalance", "noise"):
                if getattr(self, name) != getattr(DataSettings, name):
                    raise InvalidValue(name, f"cannot be combined with the split {self.split}, which fixes it already")


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """The labelled and the unlabelled images of a run, as indices into the training images of one data set.

    Example: `split = draw_split(data, DataSettings(labels=40)); data.train.pixels[split.labeled]`.
    """

    data: str
    """Name of the data set."""
    classes: int
    """Number of classes."""
    fold: int
    """Seed with which the split was drawn."""
    images: int
    """Number of training images."""
    labeled: Tensor
    """int64, (L,): images with a label; the first of each class, then the second of each class, and so on."""
    labels: Tensor
    """int64, (L,): the given labels of these images. Label noise makes some of them wrong."""
    unlabeled: Tensor
    """int64, (U,), ascending: images used without a label, which may include the labelled ones."""
    fingerprint: str | None = None
    """Fingerprint of the training images; None in old split files."""
    test_fingerprint: str | None = None
    """Fingerprint of the test images of a run with this split; None in old split files."""
    test_images: tuple[str, ...] = ()
    """Of images of your own, a hash of each test image, so that a later run can keep them; empty in old files."""

    def __repr__(self) -> str:
        counts = f"{len(self.labeled):,} labelled and {len(self.unlabeled):,} unlabelled images"
        return f"<Split of {self.data}: fold {self.fold}, {counts}>"

    @property
    def counts(self) -> list[int]:
        """Number of given labels of each class."""
        return self.labels.bincount(minlength=self.classes).tolist()

    def tested_on(self, data: DataSet) -> bool:
        """Whether the test images of `data` are those of the split; True if the split does not know them."""
        return self.test_fingerprint in (None, data.test_fingerprint)

    def to(self, device: torch.device | str) -> Self:
        """Return the same split with its tensors on `device`."""
        return replace(self, **{name: getattr(self, name).to(device) for name in ("labeled", "labels", "unlabeled")})

    def write(self, path: Path) -> None:
        """Write a JSON file. After an error the old file is unchanged."""
        write_atomically(path, self.encoded())

    def encoded(self) -> bytes:
        """Return the split as JSON."""
        return (json.dumps(sealed(self.content())) + "\n").encode()

    def content(self) -> dict[str, Any]:
        """Return the entries of a split file."""
        names = ("data", "classes", "fold", "images", "fingerprint", "test_fingerprint")
        content: dict[str, Any] = {"format": FORMAT, **{name: getattr(self, name) for name in names}}
        content |= {name: getattr(self, name).tolist() for name in ("labeled", "labels", "unlabeled")}
        if self.test_images:
            content["test_images"] = list(self.test_images)
        if content["unlabeled"] == list(range(self.images)):
            content["unlabeled"] = "all"
        return content

    @cached_property
    def digests(self) -> dict[str, str]:
        """A digest of each entry that decides what a run learns, by which a checkpoint knows its split."""
        content = self.content()
        return {name: digest_of(content[name]) for name in ("fold", "labeled", "labels", "unlabeled")}

    @classmethod
    def read(cls, path: Path, data: DataSet) -> Self:
        """Read a split file, or the one in a run folder; raise `AggMatchError` if it does not belong to `data`."""
        content = read_content(path)
        fingerprint, size = content.get("fingerprint"), len(data.train)
        moves = fingerprint is not None and os.sep in data.name  # a folder that moved has another name
        if fingerprint not in (None, data.fingerprint) and (moves or content["data"] == data.name):
            problem = f"images, labels or class names of {data.name} have changed since it was drawn"
            raise unusable(path, f"{problem}: restore them, or start a new run")
        expected = {"data": data.name, "classes": len(data.classes), "images": size}
        for key, value in expected.items():
            if (found := content[key]) != value and not (moves and key == "data"):  # type: ignore[literal-required]
                raise unusable(path, f"its '{key}' is {shorten(found)}, but that of {data.name} is {value!r}")
        unlabeled = list(range(size)) if content["unlabeled"] == "all" else sorted(content["unlabeled"])
        return cls(
            data=data.name,
            classes=len(data.classes),
            fold=content["fold"],
            images=size,
            labeled=torch.tensor(content["labeled"], dtype=torch.int64),
            labels=torch.tensor(content["labels"], dtype=torch.int64),
            unlabeled=torch.tensor(unlabeled, dtype=torch.int64),
            fingerprint=fingerprint,
            test_fingerprint=content.get("test_fingerprint"),
            test_images=tuple(content.get("test_images", ())),
        )


def drawn_settings(path: Path) -> dict[str, int]:
    """Return the settings that a split file, or the one in a run folder, implies: number of labels and fold."""
    content = read_content(path)
    return {"data.labels": len(content["labeled"]), "data.fold": content["fold"]}


class Content(TypedDict):
    """Content of a split file."""

    format: Natural
    data: str
    classes: Natural
    fold: Natural
    images: Natural
    labeled: list[Natural]
    labels: list[Natural]
    unlabeled: Literal["all"] | list[Natural]
    fingerprint: NotRequired[str | None]
    test_fingerprint: NotRequired[str | None]
    test_images: NotRequired[list[str]]


def read_content(path: Path) -> Content:
    """Read and check a split file, or the one in a run folder."""
    path = path / "split.json" if path.is_dir() else path
    content: Content = read_json(path, Content)
    if content["format"] != FORMAT:
        raise unusable(path, f"its format is {content['format']}, but this version of aggmatch reads {FORMAT}")
    for key, bound in (("labeled", "images"), ("labels", "classes"), ("unlabeled", "images")):
        check_numbers(path, key, content[key], content[bound])  # type: ignore[literal-required]
    if len(content["labeled"]) != len(content["labels"]):
        raise unusable(path, f"it names {len(content['labeled'])} labelled images but {len(content['labels'])} labels")
    if not is_intact(content):
        raise unusable(path, "it was edited after it was written; delete its 'digest' to use it as it is")
    return content


def check_numbers(path: Path, key: str, numbers: list[int] | str, bound: int) -> None:
    """Raise unless the numbers are not empty, below the bound and, if they are images, distinct."""
    if isinstance(numbers, str):  # "all"
        return
    if not numbers:
        raise unusable(path, f"'{key}' is empty")
    if (largest := max(numbers)) >= bound:
        raise unusable(path, f"'{key}' must hold whole numbers in [0, {bound - 1}], got {largest}")
    if key != "labels" and len(set(numbers)) < len(numbers):
        twice, _ = Counter(numbers).most_common(1)[0]
        raise unusable(path, f"'{key}' names image {twice} more than once")


def unusable(path: Path, problem: str) -> AggMatchError:
    """Return the error for a split that cannot be used."""
    return AggMatchError(f"Cannot use the split {path}: {problem}.")


def tested(data: DataSet) -> dict[str, Any]:
    """Return what a split says about the test images; hashes only of images of your own, whose test set can change."""
    hashes = tuple(data.test.digests()) if data.test.names else ()
    return {"test_fingerprint": data.test_fingerprint, "test_images": hashes}


def keep_test_images(data: DataSet, path: Path) -> DataSet:
    """Return the data set with the test images of an earlier split; all other images become training images.

    path: the split file, or a run folder with one. Images are found by their content. Warns about those that are gone
    or have no label any more, and about a file of an older version, which does not list its test images.
    """
    wanted = {digest: place for place, digest in enumerate(read_content(path).get("test_images", ()))}
    if not wanted:
        warnings.warn(f"{path} does not list its test images: others may be chosen now.", stacklevel=2)
        return data
    digests = data.train.digests() + data.test.digests()
    labels = torch.cat([data.train.labels, data.test.labels])
    names = data.train.names + data.test.names
    held = [position for position, label in enumerate(labels) if digests[position] in wanted and label != UNKNOWN]
    held.sort(key=lambda position: wanted[digests[position]])
    if len(held) < len(wanted):
        warnings.warn(f"{len(wanted) - len(held)} of {len(wanted)} test images of {path} are gone.", stacklevel=2)
    others = sorted(set(range(len(labels))) - set(held))

    def taken(rows: list[int]) -> Images:
        pixels = copy_rows([data.train.pixels, data.test.pixels], rows)
        return Images(pixels, labels[rows], tuple(names[row] for row in rows) if names else ())

    return replace(data, train=taken(others), test=taken(held))
