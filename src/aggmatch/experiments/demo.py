"""The first look: digits with one label per class, AggMatch beside its peers on the same labels."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from aggmatch.config import Layer
from aggmatch.data import DataSet, Split
from aggmatch.settings import resolve
from aggmatch.tables import Table
from aggmatch.training.run import Run, start

INTRODUCTION = """\
1,437 images of handwritten digits, of which only ten carry a label, one for each digit.
Three methods train on the same ten labels; 360 other images test what they learnt.
"""

METHODS = ("supervised", "fixmatch", "aggmatch")
CHOSEN: dict[str, object] = {"data.name": "digits", "data.labels": 10}


def run(out: Path, fold: int, follow: Callable[[Run, str], None]) -> Table:
    """Train every method on one fold and put the results next to each other."""
    rows: list[list[object]] = []
    for method in METHODS:
        layer = Layer("the demo", CHOSEN | {"data.fold": fold, "method.name": method})
        training = start(resolve([layer]), out / method)
        follow(training, f"{method:>10}")
        summary = training.folder.result()
        assert summary is not None, "it has just been written"
        precision = summary.get("pseudo_precision")
        rows.append([method, summary["accuracy"], precision and 100 * precision, summary["seconds"]])
    accuracy, seconds = label_spreading(training.data, training.split)
    rows.insert(1, ["LabelSpreading (scikit-learn)", accuracy, None, seconds])
    return Table(["method", "test accuracy %", "pseudo labels right %", "seconds"], rows, "digits, 1 label per class")


def label_spreading(data: DataSet, split: Split) -> tuple[float, float]:
    """Accuracy in percent and seconds of scikit-learn's LabelSpreading on the same labels.

    Kernel, γ and α are the best of 18 combinations on the unlabelled training images of folds 10 to 15.
    """
    from sklearn.semi_supervised import LabelSpreading

    started = time.monotonic()
    pixels = data.train.pixels.flatten(1).numpy() / 255
    labels = np.full(len(pixels), -1)
    labels[split.labeled.numpy()] = split.labels.numpy()
    model = LabelSpreading(kernel="rbf", gamma=4, alpha=0.99, max_iter=1000).fit(pixels, labels)
    predicted = model.predict(data.test.pixels.flatten(1).numpy() / 255)
    return 100 * float((predicted == data.test.labels.numpy()).mean()), time.monotonic() - started
