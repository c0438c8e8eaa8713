"""Splits: which training images come with a label, and with which label."""

import json
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from reprlib import repr as shorten
from typing import Annotated, Any, Literal, NotRequired, Self, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aggmatch.config import Count, Fraction, Natural, Range, Settings
from aggmatch.data.images import UNKNOWN, DataSet, Images
from aggmatch.data.noise import asymmetric, class_numbers, parse_map, symmetric
from aggmatch.data.randomness import Use, bits, shuffled
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
        unlabeled = range(size) if content["unlabeled"] == "all" else sorted(content["unlabeled"])
        tensors = (_indices(content["labeled"]), _indices(content["labels"]), _indices(unlabeled))
        prints = (fingerprint, content.get("test_fingerprint"), tuple(content.get("test_images", ())))
        return cls(data.name, len(data.classes), content["fold"], size, *tensors, *prints)


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


def _indices(values: Sequence[int] | NDArray[np.int64]) -> Tensor:
    return torch.tensor(values if isinstance(values, np.ndarray) else list(values), dtype=torch.int64)


def make_split(data: DataSet, settings: DataSettings) -> Split:
    """Return the split that the settings ask for: read from the file `settings.split`, or drawn if that is None."""
    if settings.split is None:
        return draw_split(data, settings)
    return replace(Split.read(Path(settings.split), data), **tested(data))


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


def draw_split(data: DataSet, settings: DataSettings) -> Split:
    """Draw the labelled and unlabelled images of a run.

    data: the data set. settings: number of labels, imbalance, noise, and the seed `fold`, which alone decides the
    choice. With more labels, the images chosen for fewer labels stay; noise and imbalance do not change the order.

    Example: `draw_split(load("digits"), DataSettings(labels=40)).labeled.shape` is (40,).
    """
    classes = len(data.classes)
    truth = data.train.labels.cpu().numpy()
    sizes = np.bincount(truth[truth != UNKNOWN], minlength=classes)
    _check_classes(data, sizes)
    labeled_counts = _labeled_counts(data, sizes, settings)
    # One random order per class: labelled and unlabelled images are the first ones of it.
    orders = [shuffled(np.flatnonzero(truth == k), bits(settings.fold, Use.LABELS, k)) for k in range(classes)]

    if (official := official_fold(data, settings)) is not None:
        orders = [
            np.concatenate([chosen := official[truth[official] == k], order[~np.isin(order, chosen)]])
            for k, order in enumerate(orders)
        ]

    ranks = np.concatenate([np.arange(count) for count in labeled_counts])
    chosen = np.concatenate([order[:count] for order, count in zip(orders, labeled_counts, strict=True)])
    labeled = chosen[ranks.argsort(kind="stable")]

    if settings.unlabeled_imbalance == 1:
        unlabeled = np.arange(len(truth))
    else:
        counts = _unlabeled_counts(data, sizes, settings)
        unlabeled = np.sort(np.concatenate([order[:count] for order, count in zip(orders, counts, strict=True)]))

    given = _given_labels(data, truth[labeled], settings)
    tensors = (_indices(labeled), _indices(given), _indices(unlabeled))
    return Split(data.name, classes, settings.fold, len(truth), *tensors, data.fingerprint, **tested(data))


def official_fold(data: DataSet, settings: DataSettings) -> NDArray[np.int64] | None:
    """The labelled images of an official fold, if the settings ask for as many labels as it has; None otherwise."""
    if settings.fold >= len(data.folds) or settings.labels != len(data.folds[settings.fold]):
        return None
    return np.array(data.folds[settings.fold], dtype=np.int64)


def _check_classes(data: DataSet, sizes: NDArray[np.int64]) -> None:
    if len(data.classes) < 2:
        raise AggMatchError(f"{data.name} needs at least two classes, got {len(data.classes)}.")
    if not sizes.all():
        name = data.classes[int(sizes.argmin())]
        raise AggMatchError(
            f"Class '{name}' of {data.name} has no labelled training image. Label some of each "
            f"class, or remove the class."
        )


def _labeled_counts(data: DataSet, sizes: NDArray[np.int64], settings: DataSettings) -> NDArray[np.int64]:
    """Return the number of labelled images of each class; their sum is `settings.labels`."""
    total, classes = settings.labels, len(sizes)
    if total is None:
        if settings.labeled_imbalance != 1:
            raise InvalidValue("data.labeled_imbalance", "needs a number of labels (data.labels), got null")
        return sizes
    if total < classes:
        raise InvalidValue("data.labels", f"must be at least {classes}, one for each class of {data.name}, got {total}")
    if settings.labeled_imbalance == 1 and total % classes:
        below = total - total % classes
        raise InvalidValue(
            "data.labels",
            f"must be a multiple of {classes}, the number of classes of {data.name}, "
            f"got {total}; the nearest are {below} and {below + classes}",
        )
    counts = apportion(total, long_tail(classes, settings.labeled_imbalance))
    if (counts > sizes).any():
        short = int((counts - sizes).argmax())
        raise InvalidValue(
            "data.labels",
            f"needs {counts[short]} images of class '{data.classes[short]}', but {data.name} has only {sizes[short]} "
            f"with a label, got {total}",
        )
    return counts


def _unlabeled_counts(data: DataSet, sizes: NDArray[np.int64], settings: DataSettings) -> NDArray[np.int64]:
    """Return the number of unlabelled images of each class: the largest possible long tail, at least one each."""
    if unknown := len(data.train) - int(sizes.sum()):
        raise InvalidValue(
            "data.unlabeled_imbalance",
            f"needs the class of every training image, but {unknown} images of {data.name} have none, "
            f"got {settings.unlabeled_imbalance}",
        )
    tail = long_tail(len(sizes), settings.unlabeled_imbalance)
    # Rounded down, as in long-tailed CIFAR; the small term corrects whole numbers that floats put just below.
    counts: NDArray[np.int64] = np.maximum(np.floor(tail * (sizes / tail).min() + 1e-9), 1).astype(np.int64)
    return counts


def long_tail(classes: int, ratio: float) -> NDArray[np.float64]:
    """Return the class sizes relative to the first class: ratio^(−k / (Y − 1)) for class k of Y; (Y,)."""
    return np.power(ratio, -np.arange(classes) / (classes - 1))


def apportion(total: int, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return whole numbers ∝ weights by largest remainder: at least 1 each, with sum `total` (≥ len(weights))."""
    counts = np.ones(len(weights), dtype=np.int64)
    free = np.ones(len(weights), dtype=bool)
    while True:
        # Quotas below one are raised to one. The others get less, which may push more of them below one.
        quotas = weights * ((total - np.count_nonzero(~free)) / weights[free].sum())
        if not (low := free & (quotas < 1 - 1e-9)).any():
            break
        free &= ~low
    counts[free] = np.maximum(np.floor(quotas[free]), 1).astype(np.int64)
    leftover = total - int(counts.sum())
    by_remainder = np.where(free, counts - quotas, np.inf).argsort(kind="stable")
    counts[by_remainder[:leftover]] += 1
    return counts


def _given_labels(data: DataSet, truth: NDArray[np.int64], settings: DataSettings) -> NDArray[np.int64]:
    if settings.noise == "none":
        return truth
    if settings.noise == "symmetric":
        return symmetric(truth, len(data.classes), settings.noise_rate, settings.fold)
    mapping = parse_map(settings.noise_map) or data.noise_map
    if not mapping:
        raise InvalidValue("data.noise_map", f'must be set for {data.name}, which has no map, for example ["cat>dog"]')
    return asymmetric(truth, class_numbers(mapping, data.classes), settings.noise_rate, settings.fold)
