"""What was read, in one line, and what looks wrong about it before hours of training depend on it."""

import re
import unicodedata
from collections.abc import Iterator, Sequence

from aggmatch.data.images import UNKNOWN, DataSet
from aggmatch.data.splits import Split
from aggmatch.tables import plural, some_of

LISTED = 12
"""Number of classes that the summary lists; it counts the others."""
RESEMBLES = {
    "unlabeled": {"unlabeled", "unlabelled", "unknown", "unsorted", "unclassified", "unlabel", "nolabel"},
    "test": {"test", "tests", "testing", "testset", "val", "valid", "validation", "eval", "evaluation", "holdout"},
    "train": {"train", "training", "trainset"},
}
"""Folder with a meaning → first words of class names that were perhaps meant to be it."""
MEANT = {"unlabeled": "images without a label", "test": "test images", "train": "all training images"}


def describe(data: DataSet, split: Split | None = None) -> str:
    """Return what a data set holds: `2 classes: dress 5, hat 4; 3,018 unlabelled; 372 test`.

    split: the labels that a run uses; without it, all labels of the training images count.

    Example: `describe(load("photos"))`.
    """
    counts = label_counts(data, split)
    named = [
        f"{name}{':' if name[-1:].isdigit() else ''} {count:,}"
        for name, count in zip(data.classes, counts, strict=True)
    ]
    classes = some_of(named, LISTED) + (" classes" if len(named) > LISTED else "")
    test = f"{len(data.test):,} test" if len(data.test) else "no test images"
    return f"{len(named)} classes: {classes}; {len(data.train) - sum(counts):,} unlabelled; {test}"


def label_counts(data: DataSet, split: Split | None) -> list[int]:
    """Return the number of labelled training images of each class."""
    labels = data.train.labels[data.train.labels != UNKNOWN] if split is None else split.labels
    return labels.bincount(minlength=len(data.classes)).tolist()


def doubts(data: DataSet, split: Split | None = None) -> list[str]:
    """Return a sentence for each thing about own images that looks wrong; see `describe` for the parameters.

    Example: `doubts(load("photos"))` may hold "All training images have a label ...".
    """
    found = [*strange_classes(data.classes), *similar_classes(data.classes), *copies(data)]
    if sum(label_counts(data, split)) == len(data.train):
        found.append(
            "All training images have a label: there are no unlabelled images to learn from, so a method can hardly be "
            "better than training on the labels alone."
        )
    untested = sorted(set(range(len(data.classes))) - set(data.test.labels.tolist()))
    if not len(data.test):
        found.append("There are no test images: nobody will know how good the model is.")
    elif untested:
        names = some_of([f"'{data.classes[number]}'" for number in untested])
        counts = label_counts(data, None)  # of two labels one is tested, unless a folder or an earlier run decides
        label = "Label at least two images of each class, or add" if min(counts[k] for k in untested) < 2 else "Add"
        found.append(
            f"There is no test image of {names}, so that the accuracy says nothing about "
            f"{'it' if len(untested) == 1 else 'them'}. {label} test images."
        )
    return found


def strange_classes(classes: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each class whose name looks like a folder that is not a class."""
    for name in classes:
        first = re.match(r"[A-Z]?[a-z]+|[A-Z]+", name)
        word = first[0].lower() if first else ""
        for special, words in RESEMBLES.items():
            if word in words:
                yield (
                    f"'{name}' is used as a class. If it holds {MEANT[special]}, call the folder '{special}'"
                    f"{' or leave the labels of the table empty' if special == 'unlabeled' else ''}."
                )


def similar_classes(classes: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for classes that were perhaps meant to be one: Cat and cat, t-shirt and t_shirt."""
    alike: dict[str, list[str]] = {}
    for name in classes:
        plain = re.sub(r"[\s_-]+", "", unicodedata.normalize("NFC", name).casefold())
        alike.setdefault(plain or name, []).append(f"'{name}'")
    for names in alike.values():
        if len(names) > 1:
            yield f"{', '.join(names[:-1])} and {names[-1]} are different classes. If you mean one, use one name."


def copies(data: DataSet) -> Iterator[str]:
    """Yield sentences on images that are there twice: with two labels, or in training and in test."""
    first_with: dict[str, int] = {}
    two_classes = []
    train = data.train.digests()
    for position, (digest, label) in enumerate(zip(train, data.train.labels.tolist(), strict=True)):
        if label != UNKNOWN:
            other = first_with.setdefault(digest, position)
            if data.train.labels[other] != label:
                two_classes.append(f"{data.train.call(other)} and {data.train.call(position)}")
    if two_classes:
        yield f"{are(len(two_classes), 'image')} in two classes: {some_of(two_classes)}."
    places = {digest: position for position, digest in reversed(list(enumerate(train)))}
    in_both = [
        f"{data.train.call(places[digest])} and {data.test.call(position)}"
        for position, digest in enumerate(data.test.digests())
        if digest in places
    ]
    if in_both:
        yield (
            f"{are(len(in_both), 'test image')} also among the training images, so that the accuracy will look too "
            f"good: {some_of(in_both)}."
        )


def are(count: int, noun: str) -> str:
    """Return a number with its noun and verb: 1 image is, 2 images are."""
    return f"{plural(count, noun)} {'is' if count == 1 else 'are'}"
