"""Where planned runs train: in this machine's processes, on a Ray cluster, or as tasks of a Slurm array."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from aggmatch.experiments.planned import Event, PlannedRun


class Engine(Protocol):
    """Trains planned runs somewhere.

    Example: `for failure in engine.train(runs, quiet=True): print(failure.run.title, failure.reason)`.
    """

    stopped_by: int | None
    """The signal that ended the training early; all runs are saved then."""
    later: int
    """Number of runs that train after this command, in a queue."""

    def train(self, runs: Sequence[PlannedRun], *, quiet: bool) -> Iterator[Event]:
        """Train the unfinished runs, show their progress unless `quiet`, and yield those that fail."""
        ...
