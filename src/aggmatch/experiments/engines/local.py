"""Trains runs on this machine: one after the other in this process, or several at once in processes of their own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aggmatch.errors import AggMatchError
from aggmatch.experiments.planned import Event, Follow, PlannedRun
from aggmatch.experiments.progress import show_progress
from aggmatch.registry import is_code
from aggmatch.signals import signals

POLL = 0.1
"""Seconds between two checks of the processes."""


class InTurn:
    """An `Engine` that trains one run after the other in this process.

    follow: trains a run to its end and shows its progress.

    Example: `InTurn(lambda run, title: print(title, *run.train())).train(runs, quiet=True)`.
    """

    stopped_by: int | None = None
    later = 0

    def __init__(self, follow: Follow) -> None:
        self.follow = follow

    def train(self, runs: Sequence[PlannedRun], *, quiet: bool) -> Iterator[Event]:
        """Train the unfinished runs and yield those that fail; `follow` shows the progress."""
        for run in runs:
            try:
                run.complete(self.follow)
            except AggMatchError as error:
                yield Event(run, "failed", reason=str(error))
            except Exception as error:  # of code from elsewhere; an exit of the command line passes
                if hasattr(error, "exit_code") or not any(map(is_code, run.settings.parts)):
                    raise
                yield Event(run, "failed", reason=f"{type(error).__name__}: {error}")


class Child:
    """A process that trains one run. It is in its own process session, so that only its parent passes Ctrl-C on."""

    def __init__(self, run: PlannedRun, scratch: Path, number: int, threads: int) -> None:
        self.run = run
        config, self.errors = scratch / f"{number}.json", scratch / f"{number}.err"
        config.write_text(json.dumps(run.settings.to_dict()), encoding="utf-8")
        words = ["train", "--config", str(config), "--out", str(run.path), "--quiet"]
        for name in filter(is_code, run.settings.parts):
            words += ["--allow-code", name]
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
        """Length of the log in bytes."""
        metrics = self.run.folder.metrics
        return metrics.stat().st_size if metrics.exists() else 0

    def new_records(self) -> Iterator[dict[str, Any]]:
        """Lines of the log that were written since the last call."""
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
                yield json.loads(line)
            except json.JSONDecodeError:  # the log was cut back and grew again between two checks
                continue

    def reason(self) -> str:
        """Why it failed: the last line that it printed."""
        printed = self.errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = printed[-1] if printed else f"It ended with code {self.process.returncode} and printed nothing."
        return last.removeprefix("Error: ")


class InParallel:
    """An `Engine` that trains up to `count` runs at the same time, each in its own process on this machine.

    Example: `InParallel(2).train(runs, quiet=False)`.
    """

    later = 0

    def __init__(self, count: int) -> None:
        self.count = count
        self.threads = max(1, cores() // count)
        self.stopped_by: int | None = None

    def train(self, runs: Sequence[PlannedRun], *, quiet: bool) -> Iterator[Event]:
        """Train the unfinished runs, show their progress unless `quiet`, and yield those that fail."""
        yield from show_progress(self.events(runs), quiet=quiet)

    def events(self, runs: Sequence[PlannedRun]) -> Generator[Event]:
        """Train to the end and yield what happens; if a run fails, the others go on.

        The first signal saves and stops all runs, a second one kills them.
        """
        waiting = [run for run in runs if not run.finished]
        running: list[Child] = []
        started = 0
        with TemporaryDirectory() as scratch, signals() as received:
            try:
                while running or (waiting and not received):
                    while waiting and len(running) < self.count and not received:
                        child = Child(waiting.pop(0), Path(scratch), started, self.threads)
                        started += 1
                        running.append(child)
                        yield Event(child.run, "started")
                    if received and self.stopped_by is None:
                        self.stopped_by = received[0]
                        for child in running:
                            child.process.terminate()
                    time.sleep(POLL)
                    for child in list(running):
                        over = child.process.poll() is not None
                        yield from (Event(child.run, "logged", record) for record in child.new_records())
                        if over:
                            running.remove(child)
                            yield self.ended(child)
            finally:
                for child in running:
                    child.process.kill()
                    child.process.wait()

    def ended(self, child: Child) -> Event:
        """How the run of a process ended."""
        if child.process.returncode == 0:
            return Event(child.run, "finished")
        if self.stopped_by is not None:
            return Event(child.run, "stopped")
        return Event(child.run, "failed", reason=child.reason())


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
