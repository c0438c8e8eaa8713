"""Several methods on the same folds: who is better, and by how much more than chance."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aggmatch.config import Layer
from aggmatch.errors import AggMatchError
from aggmatch.experiments.runs import Follow, PlannedRun
from aggmatch.files import write_atomically
from aggmatch.tables import Table, mean_and_deviation
from aggmatch.training.settings import RunSettings, resolve

DECIDED = {
    "method.name": ("which trains several", "Name them with --methods."),
    "data.fold": ("which trains several", "--folds N takes 0 to N - 1."),
    "data.split": ("whose folds would then have the same labels", "Train on it with: aggmatch train --split FILE"),
}
"""Settings that a comparison decides itself → why, and what to do instead."""


@dataclass(frozen=True)
class Comparison:
    """Summaries of the runs of each method, one for each fold."""

    summaries: dict[str, list[dict[str, Any]]]

    def table(self) -> Table:
        """Mean ± sample standard deviation over the folds, best first."""
        rows = []
        for method, runs in self.summaries.items():
            accuracies = [run["accuracy"] for run in runs]
            seconds = statistics.mean(run["seconds"] for run in runs)
            rows.append([method, *mean_and_deviation(accuracies), len(runs), *accuracies, seconds])
        folds = [f"fold {run['fold']}" for run in next(iter(self.summaries.values()))]
        rows.sort(key=lambda row: -row[1])
        return Table(["method", "accuracy %", "± std", "n", *folds, "seconds"], rows, title=self.title())

    def title(self) -> str:
        """What was compared, so that no figure stands alone."""
        run = next(iter(self.summaries.values()))[0]
        steps = sorted({summary["steps"] for runs in self.summaries.values() for summary in runs})
        return (
            f"{run['data']}, {run['labels']} labels, {' / '.join(map(str, steps))} steps, "
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
    """Settings of every run, by method and fold. All are checked before the first one starts.

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


def run(runs: dict[tuple[str, int], RunSettings], out: Path, follow: Follow, *, download: bool = False) -> Comparison:
    """Train what is not trained yet: finished runs in `out` are taken as they are, half-finished ones go on."""
    summaries: dict[str, list[dict[str, Any]]] = {}
    for (method, fold), settings in runs.items():
        place = out / method.replace(":", ".") / f"fold{fold}"
        planned = PlannedRun(settings, place, f"{method} fold {fold}")
        planned.complete(follow, download=download)
        summary = planned.folder.result()
        assert summary, "a complete run has one"
        summaries.setdefault(method, []).append(summary)
    return Comparison(summaries)
