"""Trains runs on this machine: one after the other in this process, or several at once in processes of their own."""

from collections.abc import Iterator, Sequence

from aggmatch.experiments.parallel import ParallelTraining
from aggmatch.experiments.planned import Failure, Follow, PlannedRun, train_in_turn
from aggmatch.experiments.progress import show_progress


class InTurn:
    """An `Engine` that trains one run after the other in this process.

    follow: trains a run to its end and shows its progress.

    Example: `InTurn(lambda run, title: print(title, *run.train())).train(runs, quiet=True)`.
    """

    stopped_by: int | None = None
    later = 0

    def __init__(self, follow: Follow) -> None:
        self.follow = follow

    def train(self, runs: Sequence[PlannedRun], *, quiet: bool) -> Iterator[Failure]:
        """Train the unfinished runs and yield those that fail; `follow` shows the progress."""
        yield from train_in_turn(runs, self.follow)


class InParallel:
    """An `Engine` that trains up to `count` runs at the same time, each in its own process on this machine.

    Example: `InParallel(2).train(runs, quiet=False)`.
    """

    later = 0

    def __init__(self, count: int) -> None:
        self.count = count
        self.stopped_by: int | None = None

    def train(self, runs: Sequence[PlannedRun], *, quiet: bool) -> Iterator[Failure]:
        """Train the unfinished runs, show their progress unless `quiet`, and yield those that fail."""
        training = ParallelTraining(runs, self.count)
        yield from show_progress(training.train(), quiet=quiet)
        self.stopped_by = training.stopped_by
