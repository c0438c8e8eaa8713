"""Several tries of one run with different seeds; the training loss tells the best.

With a few labels per class, one start finds all classes and the next one confuses two of them for good. The second fits
the views of the unlabelled images less well. So its loss is higher, and no further label is needed to see that.
"""

from collections.abc import Sequence
from pathlib import Path

from aggmatch.errors import AggMatchError
from aggmatch.experiments.engines.local import cores
from aggmatch.experiments.planned import PlannedRun
from aggmatch.runs.folder import seeded
from aggmatch.runs.stored import StoredRun
from aggmatch.settings import RunSettings
from aggmatch.tables import Table

ALIKE = 0.01
"""Share of the loss below which a difference between two tries says nothing."""


def plan(settings: RunSettings, out: Path, count: int) -> list[PlannedRun]:
    """Return runs that differ in the setting `train.seed` alone; see `runs.folder.seeded`."""
    return [PlannedRun(each, path, f"seed {each.train.seed}") for each, path in seeded(settings, out, count)]


def by_loss(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """Return the finished runs, the lowest loss at the end first. Raises an `AggMatchError` if there is none."""
    losses = [(run.last_loss, run) for run in runs if run.finished]
    known = [(loss, run) for loss, run in losses if loss is not None]
    if not known:
        raise AggMatchError("No try is finished, so none can be chosen.")
    return [run for _, run in sorted(known, key=lambda pair: pair[0])]


def table(runs: Sequence[StoredRun]) -> Table:
    """Return one row per run."""
    rows = [[run.settings.train.seed, f"{run.last_loss:.4f}", run.accuracy, str(run.path)] for run in runs]
    title = f"Tries, {runs[0].settings.recipe} recipe; the loss chooses, not the test images"
    return Table(["seed", "loss", "test accuracy %", "folder"], rows, title)


def verdict(runs: Sequence[StoredRun]) -> str:
    """Return which of the runs is the best, and whether that means much. runs: the lowest loss first."""
    best = runs[0]
    said = f"Seed {best.settings.train.seed} has the lowest loss."
    losses = [run.last_loss or 0.0 for run in runs]
    if len(runs) > 1 and losses[1] < losses[0] * (1 + ALIKE):
        said += f" Seed {runs[1].settings.train.seed} is within {ALIKE:.0%} of it, so the choice means little."
    return f"{said} Run folder: {best.path}"


def at_once(count: int, device: str) -> int:
    """Return how many runs to train at the same time on a kind of device: on a CPU, one per core."""
    return min(count, cores()) if device == "cpu" else 1
