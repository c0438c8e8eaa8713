"""The runs that an experiment needs: which are there already, and training those that are not."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from aggmatch.errors import AggMatchError
from aggmatch.runs import checkpoint
from aggmatch.runs.folder import RunFolder, run_name
from aggmatch.settings import RunSettings
from aggmatch.training.run import Run, resumed_settings, start_or_resume

Follow = Callable[[Run, str], None]
"""Trains a run to its end under a title, showing it or not."""


@dataclass(frozen=True)
class PlannedRun:
    """A run that is wanted: its settings, its folder, and what to call it."""

    settings: RunSettings
    path: Path
    title: str

    @property
    def folder(self) -> RunFolder:
        """Its folder, which need not exist."""
        return RunFolder(self.path)

    @property
    def finished(self) -> bool:
        """Whether it was trained to its end. A folder that holds a run of other settings is an error."""
        folder = self.folder
        if not folder.holds_run:
            return False
        resumed_settings(folder, [self.settings.layer("the new run")])
        return folder.summary.exists()

    @property
    def steps_done(self) -> int:
        """Steps that need not be trained again."""
        if self.finished:
            return self.settings.train.steps
        return max(map(checkpoint.step_of, checkpoint.found(self.folder.checkpoints)), default=0)

    @property
    def state(self) -> str:
        """`finished`, `at step k` or `missing`."""
        if self.finished:
            return "finished"
        return f"at step {self.steps_done:,}" if self.folder.holds_run else "missing"

    def complete(self, follow: Follow, *, download: bool = False) -> None:
        """Train it if it is missing, go on if it is half finished, leave it alone if it is finished."""
        if not self.finished:
            follow(start_or_resume(self.settings, self.path, download=download), self.title)


@dataclass(frozen=True)
class Failure:
    """A run that could not be trained to its end, and why."""

    run: PlannedRun
    reason: str


def train_in_turn(runs: Sequence[PlannedRun], follow: Follow) -> Iterator[Failure]:
    """Train what is not finished, one run after the other, yielding those that fail; they leave the others alone."""
    for run in runs:
        try:
            run.complete(follow)
        except AggMatchError as error:
            yield Failure(run, str(error))


def readable_name(settings: RunSettings) -> str:
    """A folder's name for the run of these settings: `cifar10-40-aggmatch-fold0-3fa9c2`.

    The last part is a digest of all that decides the result, so runs have one folder exactly if they are the same.
    """
    identity = json.dumps(settings.identity(), sort_keys=True).encode()
    return f"{run_name(settings)}-{hashlib.blake2b(identity, digest_size=3).hexdigest()}"
