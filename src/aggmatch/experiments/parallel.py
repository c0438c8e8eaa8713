"""Several runs at the same time, each in a process of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from aggmatch.experiments.planned import Failure, PlannedRun
from aggmatch.training.run import signals

POLL = 0.1
"""Seconds between two looks at the children."""


@dataclass(frozen=True)
class Event:
    """Something that a run did, for whoever follows."""

    run: PlannedRun
    what: Literal["started", "evaluated", "finished", "stopped"]
    record: Mapping[str, Any] | None = None
    """The record with the accuracies, of an evaluation."""


class Child:
    """A process that trains one run, in a session of its own: Ctrl-C reaches it only through its parent."""

    def __init__(self, run: PlannedRun, scratch: Path, threads: int) -> None:
        self.run = run
        config, self.errors = scratch / f"{run.path.name}.json", scratch / f"{run.path.name}.err"
        config.write_text(json.dumps(run.settings.to_dict()), encoding="utf-8")
        words = ["train", "--config", str(config), "--out", str(run.path), "--quiet"]
        if run.folder.holds_run:
            words.append("--resume")
        self.seen = self.log_size()
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "aggmatch", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={"OMP_NUM_THREADS": str(threads), **os.environ},
                start_new_session=True,
            )

    def log_size(self) -> int:
        """Length of the metrics so far, in bytes."""
        metrics = self.run.folder.metrics
        return metrics.stat().st_size if metrics.exists() else 0

    def evaluations(self) -> Iterator[dict[str, Any]]:
        """Records with accuracies that were written since the last call."""
        size = self.log_size()
        self.seen = min(self.seen, size)  # a resume cuts the log back to its checkpoint
        if size == self.seen:
            return
        with self.run.folder.metrics.open("rb") as file:
            file.seek(self.seen)
            whole, newline, _ = file.read().rpartition(b"\n")
        self.seen += len(whole + newline)
        for line in whole.splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:  # the log was cut back and grew again between two looks
                continue
            if "accuracy_average" in record:
                yield record

    def reason(self) -> str:
        """Why it failed: the last line that it printed."""
        printed = self.errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = printed[-1] if printed else f"It ended with code {self.process.returncode} and without a word."
        return last.removeprefix("Error: ")


class AtOnce:
    """Trains runs that are not finished, so many at the same time; a failing one leaves the others alone."""

    def __init__(self, runs: Sequence[PlannedRun], count: int) -> None:
        self.waiting = [run for run in runs if not run.finished]
        self.count = count
        self.threads = max(1, cores() // count)
        self.stopped_by: int | None = None
        """Signal that ended it early; all runs were saved."""

    def train(self) -> Generator[Event | Failure]:
        """Train to the end, yielding what happens. The first signal saves and stops all children, a second kills."""
        running: list[Child] = []
        with TemporaryDirectory() as scratch, signals() as received:
            try:
                while running or (self.waiting and not received):
                    while self.waiting and len(running) < self.count and not received:
                        child = Child(self.waiting.pop(0), Path(scratch), self.threads)
                        running.append(child)
                        yield Event(child.run, "started")
                    if received and self.stopped_by is None:
                        self.stopped_by = received[0]
                        for child in running:
                            child.process.terminate()
                    time.sleep(POLL)
                    for child in list(running):
                        over = child.process.poll() is not None
                        yield from (Event(child.run, "evaluated", record) for record in child.evaluations())
                        if over:
                            running.remove(child)
                            yield self.ended(child)
            finally:
                for child in running:
                    child.process.kill()
                    child.process.wait()

    def ended(self, child: Child) -> Event | Failure:
        """What became of a run whose process is over."""
        if child.process.returncode == 0:
            return Event(child.run, "finished")
        if self.stopped_by is not None:
            return Event(child.run, "stopped")
        return Failure(child.run, child.reason())


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
