"""The demo: digits with one label per class, AggMatch beside other methods on the same labels."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aggmatch.config import Layer
from aggmatch.data import DataSet, Split, load_for, make_split
from aggmatch.experiments.planned import PlannedRun
from aggmatch.runs.stored import StoredRun, read_runs
from aggmatch.settings import RunSettings, resolve
from aggmatch.tables import Table

INTRODUCTION = """\
1,437 images of handwritten digits. Only ten of them have a label, one for each digit.
Three methods train on these ten labels, side by side. 360 other images test what they learned.
"""
METHODS = ("aggmatch", "fixmatch", "supervised")
"""The slowest first, so that runs side by side end as early as possible."""
RIVAL = "LabelSpreading (scikit-learn)"
CHOSEN: dict[str, object] = {"data.name": "digits", "data.labels": 10, "runtime.device": "cpu", "runtime.threads": 1}
"""One CPU thread, so that every machine computes the same."""


@dataclass(frozen=True)
class Outcome:
    """The finished runs, in the order of `METHODS`, and scikit-learn's LabelSpreading."""

    runs: Sequence[StoredRun]
    rival_accuracy: float
    rival_seconds: float

    def table(self) -> Table:
        """One row per method."""
        rows: list[list[object]] = [
            [run.method, run.accuracy, run.pseudo_labels("precision"), run.seconds] for run in reversed(self.runs)
        ]
        rows.insert(1, [RIVAL, self.rival_accuracy, None, self.rival_seconds])
        columns = ["method", "test accuracy %", "pseudo labels right %", "seconds"]
        return Table(columns, rows, "digits, 1 label per class")


def run(out: Path, fold: int, train: Callable[[Sequence[PlannedRun]], None]) -> Outcome:
    """Train every method on one fold, and fit LabelSpreading meanwhile.

    out: folder of the runs. train: trains the planned runs to their end, in other processes.
    """
    runs = [
        PlannedRun(
            resolve([Layer("the demo", CHOSEN | {"data.fold": fold, "method.name": method})]), out / method, method
        )
        for method in METHODS
    ]
    with ThreadPoolExecutor(1) as pool:
        rival = pool.submit(fit_rival, runs[0].settings)
        train(runs)
        accuracy, seconds = rival.result()
    return Outcome(read_runs([run.path for run in runs]), accuracy, seconds)


def fit_rival(settings: RunSettings) -> tuple[float, float]:
    """Accuracy in percent and seconds of LabelSpreading on the labels of a run."""
    data = load_for(settings.data, settings.runtime.data_dir)
    return label_spreading(data, make_split(data, settings.data))


def label_spreading(data: DataSet, split: Split) -> tuple[float, float]:
    """Test accuracy in percent and seconds of scikit-learn's LabelSpreading on a split.

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
