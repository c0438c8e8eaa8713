"""Draws a split: which training images come with a label, which without one, and with which label."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from aggmatch.data.images import UNKNOWN, DataSet
from aggmatch.data.noise import asymmetric, class_numbers, parse_map, symmetric
from aggmatch.data.randomness import Use, bits, shuffled
from aggmatch.data.splits import DataSettings, Split, tested
from aggmatch.errors import AggMatchError
from aggmatch.validate import InvalidValue


def make_split(data: DataSet, settings: DataSettings) -> Split:
    """Return the split that the settings ask for: read from the file `settings.split`, or drawn if that is None."""
    if settings.split is None:
        return draw_split(data, settings)
    return replace(Split.read(Path(settings.split), data), **tested(data))


def draw_split(data: DataSet, settings: DataSettings) -> Split:
    """Draw the labelled and unlabelled images of a run.

    data: the data set. settings: number of labels, imbalance, noise, and the seed `fold`, which alone decides the
    choice. With more labels, the images chosen for fewer labels stay; noise and imbalance do not change the order.

    Example: `draw_split(load("digits"), DataSettings(labels=40)).labeled.shape` is (40,).
    """
    classes = len(data.classes)
    truth = data.train.labels.cpu().numpy()
    sizes = np.bincount(truth[truth != UNKNOWN], minlength=classes)
    check_classes(data, sizes)
    labeled_counts = count_labeled(data, sizes, settings)
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
        counts = count_unlabeled(data, sizes, settings)
        unlabeled = np.sort(np.concatenate([order[:count] for order, count in zip(orders, counts, strict=True)]))

    return Split(
        data=data.name,
        classes=classes,
        fold=settings.fold,
        images=len(truth),
        labeled=torch.from_numpy(labeled),
        labels=torch.from_numpy(give_labels(data, truth[labeled], settings)),
        unlabeled=torch.from_numpy(unlabeled),
        fingerprint=data.fingerprint,
        **tested(data),
    )


def official_fold(data: DataSet, settings: DataSettings) -> NDArray[np.int64] | None:
    """The labelled images of an official fold, if the settings ask for as many labels as it has; None otherwise."""
    if settings.fold >= len(data.folds) or settings.labels != len(data.folds[settings.fold]):
        return None
    return np.array(data.folds[settings.fold], dtype=np.int64)


def check_classes(data: DataSet, sizes: NDArray[np.int64]) -> None:
    """Raise an `AggMatchError` unless there are at least two classes, each with a labelled image."""
    if len(data.classes) < 2:
        raise AggMatchError(f"{data.name} needs at least two classes, got {len(data.classes)}.")
    if not sizes.all():
        name = data.classes[int(sizes.argmin())]
        raise AggMatchError(
            f"Class '{name}' of {data.name} has no labelled training image. Label some of each "
            f"class, or remove the class."
        )


def count_labeled(data: DataSet, sizes: NDArray[np.int64], settings: DataSettings) -> NDArray[np.int64]:
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


def count_unlabeled(data: DataSet, sizes: NDArray[np.int64], settings: DataSettings) -> NDArray[np.int64]:
    """Return the number of unlabelled images of each class: the largest possible long tail, at least one each."""
    if unknown := len(data.train) - int(sizes.sum()):
        raise InvalidValue(
            "data.unlabeled_imbalance",
            f"needs the class of every training image, but {unknown} images of {data.name} have none, "
            f"got {settings.unlabeled_imbalance}",
        )
    tail = long_tail(len(sizes), settings.unlabeled_imbalance)
    # Rounded down, as in long-tailed CIFAR; the small term corrects whole numbers that floats put just below.
    return np.maximum(np.floor(tail * (sizes / tail).min() + 1e-9), 1).astype(np.int64)


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


def give_labels(data: DataSet, truth: NDArray[np.int64], settings: DataSettings) -> NDArray[np.int64]:
    """Return the labels that images of these classes are given: those with noise, if the settings ask for it."""
    if settings.noise == "none":
        return truth
    if settings.noise == "symmetric":
        return symmetric(truth, len(data.classes), settings.noise_rate, settings.fold)
    mapping = parse_map(settings.noise_map) or data.noise_map
    if not mapping:
        raise InvalidValue("data.noise_map", f'must be set for {data.name}, which has no map, for example ["cat>dog"]')
    return asymmetric(truth, class_numbers(mapping, data.classes), settings.noise_rate, settings.fold)
