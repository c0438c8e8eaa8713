"""Sends runs to the machines of a cluster, receives their files, and sends a run again if its machine is lost."""

import time
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from aggmatch.errors import AggMatchError
from aggmatch.experiments.engines.parcels import files_of, pack, remove_old_checkpoints, unpack
from aggmatch.experiments.engines.worker import Message, Order
from aggmatch.experiments.planned import Event, PlannedRun
from aggmatch.runs.folder import RunFolder
from aggmatch.signals import signals
from aggmatch.storage.files import make_folder

POLL = 0.2
"""Seconds to wait for messages before the next check for signals."""
RETRIES = 3
"""How often in a row a run may lose its machine without a new checkpoint and still start again."""
PATIENCE = 60.0
"""Seconds without a run in training before a warning."""


class MachineLost(Exception):  # noqa: N818 - the run starts again
    """Raised if the machine or process that trains a run is gone; the message says what is known about it."""


class Cluster(Protocol):
    """Machines that train. A job is whatever `submit` returns."""

    needs: str
    """What a run needs, in words: `1 CPU and 0.5 GPU`."""

    def submit(self, title: str, order: Order, pieces: Iterator[bytes]) -> Any:
        """Hand in a run, with the pieces of the archive of its files, and return its job."""
        ...

    def ready(self, jobs: Sequence[Any], seconds: float) -> Sequence[Any]:
        """Return the jobs that have a message; wait for the first one for at most this time."""
        ...

    def receive(self, job: Any) -> Message:
        """Return the next message of a job that is ready; raise `MachineLost` if none can come."""
        ...

    def stop(self) -> None:
        """Ask all jobs to save and stop."""
        ...

    def cancel(self, job: Any) -> None:
        """End a job at once."""
        ...


@dataclass
class Trip:
    """A run that is with the cluster."""

    run: PlannedRun
    archive: Path
    """The file that collects the pieces of its files."""
    job: Any = None
    machine: str = ""
    """The process and machine that trains it; empty while it waits."""
    steps: int = 0
    """Steps that were done when it was handed in."""
    lost: list[str] = field(default_factory=list)
    """What happened to its machines since its last new checkpoint."""


class RemoteTraining:
    """Trains the unfinished runs on a cluster; if one fails, the others go on.

    runs: their folders are on this machine. cluster: the machines. download: whether they fetch missing files of the
    data set.

    Example: `for event in RemoteTraining(runs, cluster).train(): print(event.run.title)`.
    """

    def __init__(self, runs: Sequence[PlannedRun], cluster: Cluster, *, download: bool = False) -> None:
        self.runs, self.cluster, self.download = runs, cluster, download
        self.trips: list[Trip] = []
        self.stopped_by: int | None = None
        """The signal that ended it early; all runs are saved then."""
        self.trained = time.monotonic()
        """When a run was last in training."""

    def train(self) -> Generator[Event]:
        """Train to the end and yield what happens. The first signal saves and stops all runs, a second one kills."""
        with TemporaryDirectory() as scratch, ExitStack() as claims, signals() as received:
            try:
                for number, run in enumerate(self.runs):
                    try:
                        if not run.finished:
                            claims.enter_context(claimed(run.folder))
                            trip = Trip(run, Path(scratch) / f"{number}.tar")
                            self.submit(trip)
                            self.trips.append(trip)
                    except (AggMatchError, OSError) as error:
                        yield Event(run, "failed", reason=str(error))
                while self.trips:
                    if received and self.stopped_by is None:
                        self.stopped_by = received[0]
                        self.stop()
                    self.warn_if_idle()
                    by_job = {id(trip.job): trip for trip in self.trips}
                    for job in self.cluster.ready([trip.job for trip in self.trips], POLL):
                        yield from self.handle(by_job[id(job)])
            finally:
                for trip in self.trips:
                    self.cluster.cancel(trip.job)

    def submit(self, trip: Trip) -> None:
        """Hand in a run with the files that it has so far."""
        run = trip.run
        trip.steps, trip.machine = run.steps_done, ""
        names = list(files_of(run.path)) if run.folder.holds_run else []
        order = Order(run.to_dict(), self.download, str(Path.cwd()))
        trip.archive.unlink(missing_ok=True)
        outgoing = pack(run.path, names, trip.archive.with_suffix(".out")) if names else iter(())
        trip.job = self.cluster.submit(run.title, order, outgoing)

    def stop(self) -> None:
        """Ask the runs in training to save and stop; those that wait are not trained at all."""
        self.cluster.stop()
        for trip in [trip for trip in self.trips if not trip.machine]:
            self.cluster.cancel(trip.job)
            self.trips.remove(trip)

    def warn_if_idle(self) -> None:
        """Warn if no machine takes a run for a long time: perhaps no machine has what a run needs."""
        now = time.monotonic()
        if any(trip.machine for trip in self.trips):
            self.trained = now
        elif now - self.trained > PATIENCE:
            self.trained = float("inf")
            warnings.warn(
                f"No machine of the cluster takes a run. Each needs {self.cluster.needs}. Waiting.", stacklevel=2
            )

    def handle(self, trip: Trip) -> Iterator[Event]:
        """Take the next message about a run; give the run up if its files cannot be read or written here."""
        try:
            yield from self.take(trip)
        except (AggMatchError, OSError) as error:
            self.cluster.cancel(trip.job)
            yield self.end(trip, Event(trip.run, "failed", reason=str(error)))

    def take(self, trip: Trip) -> Iterator[Event]:
        """Take the next message about a run; send the run again if its machine is lost."""
        try:
            message = self.cluster.receive(trip.job)
            match message.kind:
                case "started":
                    trip.machine = message.value
                    yield Event(trip.run, "started")
                case "logged":
                    yield Event(trip.run, "logged", message.value)
                case "piece":
                    with trip.archive.open("ab") as file:
                        file.write(message.value)
                case "files":
                    self.take_files(trip, message.value)
                case "finished":
                    yield self.end(trip, Event(trip.run, "finished"))
                case "failed":
                    yield self.end(trip, Event(trip.run, "failed", reason=message.value))
                case "stopped":
                    raise MachineLost(message.value)
        except MachineLost as loss:
            yield self.lose(trip, str(loss))

    def take_files(self, trip: Trip, names: list[str]) -> None:
        """Bring the files that arrived into the folder of the run."""
        if trip.archive.exists():
            unpack(trip.archive, trip.run.path)
            trip.archive.unlink()
        remove_old_checkpoints(trip.run.folder, names)

    def lose(self, trip: Trip, reason: str) -> Event:
        """Send a run again whose machine is lost, unless that happens again and again."""
        if self.stopped_by is not None:
            return self.end(trip, Event(trip.run, "stopped"))
        trip.lost = [] if trip.run.steps_done > trip.steps else trip.lost
        trip.lost.append(f"{trip.machine}: {reason}" if trip.machine else reason)
        if len(trip.lost) > RETRIES:
            words = f"its process was lost {len(trip.lost)} times without a new checkpoint, at last {trip.lost[-1]}"
            return self.end(trip, Event(trip.run, "failed", reason=words))
        self.submit(trip)
        return Event(trip.run, "interrupted")

    def end(self, trip: Trip, event: Event) -> Event:
        """Return the last event of a run, which is no longer with the cluster."""
        self.trips.remove(trip)
        return event


@contextmanager
def claimed(folder: RunFolder) -> Iterator[None]:
    """Within, no other process can train in the folder; at the end, an empty folder is deleted."""
    new = not folder.path.exists()
    make_folder(folder.path)
    if not folder.holds_run:
        folder.check_empty(folder.split.read_bytes() if folder.split.exists() else b"")
    try:
        with folder.locked():
            yield
    finally:
        if new and not folder.holds_run:
            with suppress(OSError):
                folder.lock.unlink()
                folder.path.rmdir()
