"""The demo: digits with one label per class, AggMatch compared with other methods on the same labels."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aggmatch.config import Layer
from aggmatch.data import DataSettings, load, make_split
from aggmatch.experiments.planned import PlannedRun
from aggmatch.runs.stored import StoredRun, read_runs
from aggmatch.settings import resolve
from aggmatch.tables import Table

INTRODUCTION = """\
1,437 images of handwritten digits. Only ten of them have a label, one for each digit.
Three methods train on these ten labels, in parallel. 360 other images test what they learned.
"""
METHODS = ("aggmatch", "fixmatch", "supervised")
"""The slowest first, so that parallel runs end as early as possible."""
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
            [run.method, run.settings.recipe, run.accuracy, run.pseudo_labels("precision"), run.seconds]
            for run in reversed(self.runs)
        ]
        rows.insert(1, [RIVAL, None, self.rival_accuracy, None, self.rival_seconds])
        columns = ["method", "recipe", "test accuracy %", "pseudo labels right %", "seconds"]
        return Table(columns, rows, "digits, 1 label per class")


def run(out: Path, fold: int, train: Callable[[Sequence[PlannedRun]], None]) -> Outcome:
    """Train every method on one fold, and fit LabelSpreading at the same time.

    out: folder of the runs. train: trains the planned runs to their end, in other processes.
    """
    layers = [Layer("the demo", CHOSEN | {"data.fold": fold, "method.name": method}) for method in METHODS]
    runs = [PlannedRun(resolve([layer]), out / name, name) for layer, name in zip(layers, METHODS, strict=True)]
    with ThreadPoolExecutor(1) as pool:
        rival = pool.submit(label_spreading, runs[0].settings.data)
        train(runs)
    return Outcome(read_runs([run.path for run in runs]), *rival.result())


def label_spreading(settings: DataSettings) -> tuple[float, float]:
    """Test accuracy in percent and seconds of scikit-learn's LabelSpreading on the digits and their drawn labels.

    Kernel, γ and α are the best of 18 combinations on the unlabelled training images of folds 10 to 15.
    """
    from sklearn.semi_supervised import LabelSpreading

    data = load(settings.name)
    split = make_split(data, settings)
    started = time.monotonic()
    pixels = data.train.pixels.flatten(1).numpy() / 255
    labels = np.full(len(pixels), -1)
    labels[split.labeled.numpy()] = split.labels.numpy()
    model = LabelSpreading(kernel="rbf", gamma=4, alpha=0.99, max_iter=1000).fit(pixels, labels)
    predicted = model.predict(data.test.pixels.flatten(1).numpy() / 255)
    return 100 * float((predicted == data.test.labels.numpy()).mean()), time.monotonic() - started
