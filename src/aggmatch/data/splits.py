"""Which training images come with a label, and with which one."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from reprlib import repr as shorten
from typing import Annotated, Literal, NotRequired, Self, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aggmatch.config import Count, Fraction, Natural, Range, Settings
from aggmatch.data.images import UNKNOWN, DataSet
from aggmatch.data.noise import asymmetric, class_numbers, parse_map, symmetric
from aggmatch.data.randomness import Use, bits, shuffled
from aggmatch.errors import AggMatchError
from aggmatch.files import write_atomically
from aggmatch.validate import InvalidValue, read_json

Imbalance = Annotated[float, Range(1)]
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class DataSettings(Settings):
    """The data set of a run, and how its labels are chosen."""

    name: str = "digits"
    """Data set: one of `aggmatch list data`, or a folder of images."""
    labels: Count | None = 40
    """Labelled images in all, equally many of each class; null for all that there are."""
    side: Annotated[int, Range(8, 1024)] = 32
    """Pixels to which images of a folder are scaled, each way; other data sets have their own."""
    holdout: Annotated[float, Range(0, 0.9, above=True)] = 0.2
    """Share of the labelled images of each class that a folder without test images holds out as those."""
    fold: Natural = 0
    """Seed of the choice. Folds 0, 1 and 2 make up the mean ± std of a table."""
    split: str | None = None
    """A split.json, or the run folder that holds it, to reuse instead of drawing; labels and fold are then its own."""
    labeled_imbalance: Imbalance = 1.0
    """Labelled images of the first class over those of the last; above 1 the classes form a long tail."""
    unlabeled_imbalance: Imbalance = 1.0
    """The same for unlabelled images; at 1 every training image is one of them, the labelled ones included."""
    noise: Literal["none", "symmetric", "asymmetric"] = "none"
    """Wrong labels: none, of any other class (symmetric), or of the class that noise_map names (asymmetric)."""
    noise_rate: Fraction = 0.0
    """Share of wrong labels in each class that has any."""
    noise_map: tuple[str, ...] = ()
    """Asymmetric noise as items such as "cat>dog"; empty for the data set's own map."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise == "none" and self.noise_rate > 0:
            raise InvalidValue("noise_rate", f"needs a kind of noise (symmetric or asymmetric), got {self.noise_rate}")
        if self.noise != "none" and self.noise_rate == 0:
            raise InvalidValue("noise_rate", f"must be above 0 with {self.noise} noise, got {self.noise_rate}")
        if self.noise_map and self.noise != "asymmetric":
            raise InvalidValue("noise_map", f"needs asymmetric noise, got {self.noise}")
        parse_map(self.noise_map)
        if self.split is not None:
            for name in ("labeled_imbalance", "unlabeled_imbalance", "noise"):
                if getattr(self, name) != getattr(DataSettings, name):
                    raise InvalidValue(name, f"cannot be combined with the split {self.split}, which fixes it already")


@dataclass(frozen=True, eq=False)
class Split:
    """The chosen images of one data set, by their position among its training images."""

    data: str
    """Name of the data set."""
    classes: int
    fold: int
    images: int
    """Number of training images."""
    labeled: Tensor
    """int64: images that come with a label; the first of each class, then the second of each, ..."""
    labels: Tensor
    """int64: their labels as given, which noise may have made wrong."""
    unlabeled: Tensor
    """int64, ascending: images used without a label, which may include the labelled ones."""
    fingerprint: str | None = None
    """That of the data set; not known of older splits."""
    test_fingerprint: str | None = None
    """That of the test images which a run on this split is tested with; not known of older splits."""

    def tested_on(self, data: DataSet) -> bool:
        """Whether the test images of `data` are those that belong to the split, as far as is known."""
        return self.test_fingerprint in (None, data.test_fingerprint)

    def to(self, device: torch.device | str) -> Self:
        """The same split with its tensors on `device`."""
        moved = {name: getattr(self, name).to(device) for name in ("labeled", "labels", "unlabeled")}
        return replace(self, **moved)

    def write(self, path: Path) -> None:
        """Write as JSON. The file is complete or untouched, whatever happens."""
        write_atomically(path, self.encoded())

    def encoded(self) -> bytes:
        """The split as JSON."""
        everything = torch.equal(self.unlabeled.cpu(), torch.arange(self.images))
        content = {
            "format": FORMAT,
            "data": self.data,
            "classes": self.classes,
            "fold": self.fold,
            "images": self.images,
            "fingerprint": self.fingerprint,
            "test_fingerprint": self.test_fingerprint,
            "labeled": self.labeled.tolist(),
            "labels": self.labels.tolist(),
            "unlabeled": "all" if everything else self.unlabeled.tolist(),
        }
        return (json.dumps(content) + "\n").encode()

    @classmethod
    def read(cls, path: Path, data: DataSet) -> Self:
        """Read a split file, or the one in a run folder, and check that it belongs to `data`."""
        content = read_content(path)
        fingerprint, size = content.get("fingerprint"), len(data.train)
        expected: dict[str, int | str] = {"classes": len(data.classes), "images": size}
        if fingerprint is None or os.sep not in data.name:  # a folder may have moved, and then has another name
            expected = {"data": data.name, **expected}
        for key, value in expected.items():
            if (found := content[key]) != value:  # type: ignore[literal-required]
                raise refused(path, f"its '{key}' is {shorten(found)}, but that of {data.name} is {value!r}")
        if fingerprint not in (None, data.fingerprint):
            raise refused(path, f"images, labels or class names of {data.name} are not those it was made of")
        unlabeled = range(size) if content["unlabeled"] == "all" else sorted(content["unlabeled"])
        tensors = (_indices(content["labeled"]), _indices(content["labels"]), _indices(unlabeled))  # type: ignore[arg-type]
        prints = (fingerprint, content.get("test_fingerprint"))
        return cls(data.name, len(data.classes), content["fold"], size, *tensors, *prints)


def drawn_settings(path: Path) -> dict[str, int]:
    """Settings that the split in a file, or in the run folder that holds it, stands for: its labels and its fold."""
    content = read_content(path)
    return {"data.labels": len(content["labeled"]), "data.fold": content["fold"]}


class Content(TypedDict):
    """What a split file holds."""

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


def read_content(path: Path) -> Content:
    """Read and check a split file, or the one in a run folder."""
    path = path / "split.json" if path.is_dir() else path
    content: Content = read_json(path, Content)
    if content["format"] != FORMAT:
        raise refused(path, f"its format is {content['format']}, but this version of aggmatch reads {FORMAT}")
    for key, bound in (("labeled", "images"), ("labels", "classes"), ("unlabeled", "images")):
        check_numbers(path, key, content[key], content[bound])  # type: ignore[literal-required]
    if len(content["labeled"]) != len(content["labels"]):
        raise refused(path, f"it names {len(content['labeled'])} labelled images but {len(content['labels'])} labels")
    return content


def check_numbers(path: Path, key: str, numbers: list[int] | str, bound: int) -> None:
    """Raise an `AggMatchError` unless the numbers are below a bound, not empty and, if they name images, distinct."""
    if isinstance(numbers, str):  # "all"
        return
    if not numbers:
        raise refused(path, f"'{key}' is empty")
    if (largest := max(numbers)) >= bound:
        raise refused(path, f"'{key}' must hold whole numbers in [0, {bound - 1}], got {largest}")
    if key != "labels" and len(set(numbers)) < len(numbers):
        twice, _ = Counter(numbers).most_common(1)[0]
        raise refused(path, f"'{key}' names image {twice} more than once")


def refused(path: Path, problem: str) -> AggMatchError:
    """The error for a split that cannot be used."""
    return AggMatchError(f"Cannot use the split {path}: {problem}.")


def _indices(values: Sequence[int] | NDArray[np.int64]) -> Tensor:
    return torch.tensor(values if isinstance(values, np.ndarray) else list(values), dtype=torch.int64)


# Drawing ---------------------------------------------------------------------------------------------------------


def make_split(data: DataSet, settings: DataSettings) -> Split:
    """The split that the settings ask for: read from their file if they name one, drawn otherwise."""
    if settings.split is None:
        return draw_split(data, settings)
    return replace(Split.read(Path(settings.split), data), test_fingerprint=data.test_fingerprint)


def draw_split(data: DataSet, settings: DataSettings) -> Split:
    """A split by `settings.fold` alone: more labels keep the fewer ones, and noise or imbalance do not move them."""
    classes = len(data.classes)
    truth = data.train.labels.cpu().numpy()
    sizes = np.bincount(truth[truth != UNKNOWN], minlength=classes)
    _check_classes(data, sizes)
    labeled_counts = _labeled_counts(data, sizes, settings)
    # One order for each class: the labelled and the unlabelled are its beginnings.
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
    prints = (data.fingerprint, data.test_fingerprint)
    return Split(data.name, classes, settings.fold, len(truth), *tensors, *prints)


def official_fold(data: DataSet, settings: DataSettings) -> NDArray[np.int64] | None:
    """The labelled images of an official fold, if the settings ask for as many labels as it has; None otherwise."""
    if settings.fold >= len(data.folds) or settings.labels != len(data.folds[settings.fold]):
        return None
    return np.array(data.folds[settings.fold], dtype=np.int64)


def _check_classes(data: DataSet, sizes: NDArray[np.int64]) -> None:
    if len(data.classes) < 2:
        raise AggMatchError(f"{data.name} needs at least two classes to tell apart, got {len(data.classes)}.")
    if not sizes.any():
        raise AggMatchError(f"{data.name} has no labelled training image. Label some of each class.")
    if not sizes.all():
        raise AggMatchError(
            f"Class '{data.classes[int(sizes.argmin())]}' of {data.name} has no labelled training image. Label some."
        )


def _labeled_counts(data: DataSet, sizes: NDArray[np.int64], settings: DataSettings) -> NDArray[np.int64]:
    """Labelled images of each class, `settings.labels` in all."""
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
            f"asks for {counts[short]} images of class '{data.classes[short]}', but {data.name} has only {sizes[short]}"
            f" of them with a label, got {total}",
        )
    return counts


def _unlabeled_counts(data: DataSet, sizes: NDArray[np.int64], settings: DataSettings) -> NDArray[np.int64]:
    """Unlabelled images of each class: the largest long tail that the classes allow, at least one each."""
    if unknown := len(data.train) - int(sizes.sum()):
        raise InvalidValue(
            "data.unlabeled_imbalance",
            f"needs the class of every training image, but {unknown} of {data.name} have none, "
            f"got {settings.unlabeled_imbalance}",
        )
    tail = long_tail(len(sizes), settings.unlabeled_imbalance)
    # Rounded down, as long-tailed CIFAR is; the small term is for what should be whole and is a hair below.
    counts: NDArray[np.int64] = np.maximum(np.floor(tail * (sizes / tail).min() + 1e-9), 1).astype(np.int64)
    return counts


def long_tail(classes: int, ratio: float) -> NDArray[np.float64]:
    """Sizes of the classes relative to the first: ratio^(−k / (Y − 1)) for class k of Y."""
    return np.power(ratio, -np.arange(classes) / (classes - 1))


def apportion(total: int, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole numbers ∝ weights by largest remainder: at least 1 each, exactly `total` in all (total ≥ len(weights))."""
    counts = np.ones(len(weights), dtype=np.int64)
    free = np.ones(len(weights), dtype=bool)
    while True:
        # Those below one are lifted to it, at the expense of the others, which may push more of these below one.
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
    if settings.noise == "symmetric":
        return symmetric(truth, len(data.classes), settings.noise_rate, settings.fold)
    if settings.noise == "none":
        return truth
    mapping = parse_map(settings.noise_map) or data.noise_map
    if not mapping:
        raise InvalidValue(
            "data.noise_map", f'must be given for {data.name}, for example ["cat>dog"]: it has none of its own'
        )
    return asymmetric(truth, class_numbers(mapping, data.classes), settings.noise_rate, settings.fold)
