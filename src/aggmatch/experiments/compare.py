"""Several methods on the same folds: who is better, and by how much more than chance."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aggmatch.augment import check_images
from aggmatch.config import Layer
from aggmatch.data import DataSet, load_for, make_split
from aggmatch.data.streams import check_balance
from aggmatch.errors import AggMatchError
from aggmatch.experiments.planned import PlannedRun
from aggmatch.files import write_atomically
from aggmatch.methods import load_method
from aggmatch.settings import RunSettings, resolve
from aggmatch.tables import Table, mean_and_deviation

DECIDED = {
    "method.name": ("which trains several", "Name them with --methods."),
    "data.fold": ("which trains several", "--folds N takes 0 to N - 1."),
    "data.split": ("whose folds would then have the same labels", "Train on it with: aggmatch train --split FILE"),
}
"""Settings that a comparison decides itself → why, and what to do instead."""


@dataclass(frozen=True)
class Comparison:
    """Summaries of the finished runs of each method, one for each fold."""

    summaries: dict[str, list[dict[str, Any]]]

    def __post_init__(self) -> None:
        if not self.summaries:
            raise AggMatchError("There is nothing to compare: no run finished.")

    def table(self) -> Table:
        """Mean ± sample standard deviation over the folds, best first; a fold that a method lacks is left open."""
        folds = sorted({run["fold"] for runs in self.summaries.values() for run in runs})
        rows = []
        for method, runs in self.summaries.items():
            accuracies = {run["fold"]: run["accuracy"] for run in runs}
            seconds = statistics.mean(run["seconds"] for run in runs)
            mean = mean_and_deviation(list(accuracies.values()))
            rows.append([method, *mean, len(runs), *(accuracies.get(fold) for fold in folds), seconds])
        rows.sort(key=lambda row: -row[1])
        columns = ["method", "accuracy %", "± std", "n", *(f"fold {fold}" for fold in folds), "seconds"]
        return Table(columns, rows, title=self.title())

    def title(self) -> str:
        """What was compared, so that no figure stands alone."""
        run = next(iter(self.summaries.values()))[0]
        steps = sorted({summary["steps"] for runs in self.summaries.values() for summary in runs})
        return (
            f"{Path(run['data']).name}, {run['labels']} labels, {' / '.join(map(str, steps))} steps, "
            f"test accuracy of the {run['network']} network at the last step, {run['hardware']}"
        )

    def write(self, out: Path) -> list[Path]:
        """The table as `comparison.csv`, `.json` and `.md`."""
        table = self.table()
        contents = {"csv": table.csv(), "json": table.json() + "\n", "md": f"{table.title}\n\n{table.markdown()}"}
        paths = [out / f"comparison.{suffix}" for suffix in contents]
        for path, content in zip(paths, contents.values(), strict=True):
            write_atomically(path, content.encode())
        return paths


def plan(methods: Sequence[str], folds: int, layers: Sequence[Layer]) -> dict[tuple[str, int], RunSettings]:
    """Settings of every run, by method and fold, checked as far as they can be without the data.

    `layers` change all runs alike; what sets the runs apart is refused there.
    """
    for layer in layers:
        for key, (reason, instead) in DECIDED.items():
            if key in layer.values:
                raise AggMatchError(f"{key} cannot be set for a comparison, {reason} (from {layer.source}). {instead}")
    return {
        (method, fold): resolve([*layers, Layer("the comparison", {"method.name": method, "data.fold": fold})])
        for method in methods
        for fold in range(folds)
    }


def place(runs: Mapping[tuple[str, int], RunSettings], out: Path) -> list[PlannedRun]:
    """The runs with their folders in `out`."""
    return [
        PlannedRun(settings, out / method.replace(":", ".") / f"fold{fold}", f"{method} fold {fold}")
        for (method, fold), settings in runs.items()
    ]


def check(runs: Sequence[PlannedRun], *, download: bool = False) -> dict[str, str]:
    """Methods that cannot be trained on the data set, which is fetched if asked to → why; asked before any run starts.

    What is finished is taken as it is and needs no data. Labels that cannot be drawn are an error for all of them.
    """
    missing = [run for run in runs if not run.finished]
    if not missing:
        return {}
    settings = missing[0].settings
    data = load_for(settings.data, settings.runtime.data_dir, download)
    check_images(data.train.pixels)
    found = {run.settings.method_name: misfit(data, run.settings) for run in missing}
    return {method: why for method, why in found.items() if why}


def misfit(data: DataSet, settings: RunSettings) -> str:
    """Why a run's labelled images cannot be put into the batches that its method wants; nothing where they can."""
    split = make_split(data, settings.data)
    try:
        if load_method(settings.method_name).balanced:
            check_balance(split.labels, data.classes, settings.train.batch)
    except AggMatchError as error:
        return str(error)
    return ""


def collect(runs: Sequence[PlannedRun]) -> Comparison:
    """The runs that are finished, side by side."""
    summaries: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        if summary := run.folder.result():
            summaries.setdefault(run.settings.method_name, []).append(summary)
    return Comparison(summaries)
