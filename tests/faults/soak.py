"""A long run: memory, open files and threads of the process stay flat."""

from collections.abc import Iterable
from pathlib import Path
from statistics import median
from threading import active_count
from typing import NamedTuple

from tests.faults.runs import SETTINGS
from tests.faults.tally import Tally

from aggmatch.settings import resolve
from aggmatch.training.begin import start

SAMPLES = 100
"""Times at which a run is looked at."""
GROWTH = 8.0
"""MiB of memory by which the end of a run may lie above its middle: allocators return memory in pieces."""


class Use(NamedTuple):
    """What a process holds at one moment."""

    step: int
    memory: float
    """Anonymous memory in MiB: pages of libraries turn from shared to private when another process ends."""
    files: int
    threads: int


def measure(step: int) -> Use:
    """What this process holds now, as Linux counts it."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    anonymous = sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))
    system_threads = len(list(Path("/proc/self/task").iterdir()))
    return Use(step, anonymous / 1024, len(list(Path("/proc/self/fd").iterdir())), max(system_threads, active_count()))


def try_soak(place: Path, steps: int) -> Tally:
    """Train on digits for many steps, with log lines, evaluations and checkpoints, and watch the process."""
    tally = Tally(f"A run of {steps:,} steps")
    every = max(1, steps // SAMPLES)
    changes = {"train.steps": steps, "train.log_every": every, "train.evaluate_every": every}
    run = start(resolve(SETTINGS | changes | {"runtime.checkpoint_every": every}), place)
    uses = [measure(record["step"]) for record in run.train()]
    for problem in problems(uses):
        tally.blame(problem)
    if not tally.wrong:
        first, last = uses[len(uses) // 2], uses[-1]
        tally.add(
            f"flat: memory {first.memory:.1f} MiB at step {first.step:,}, {last.memory:.1f} MiB at the end; "
            f"{last.files} open files, {last.threads} threads"
        )
    return tally


def problems(uses: Iterable[Use]) -> list[str]:
    """What grew from the third quarter of a run to its last one."""
    uses = list(uses)
    third, last = uses[len(uses) // 2 : 3 * len(uses) // 4], uses[3 * len(uses) // 4 :]
    found = []
    if (more := median(use.memory for use in last) - median(use.memory for use in third)) > GROWTH:
        found.append(f"memory grew by {more:.1f} MiB")
    found += [
        f"{name} grew from {max(getattr(use, name) for use in third)} to {max(getattr(use, name) for use in last)}"
        for name in ("files", "threads")
        if max(getattr(use, name) for use in last) > max(getattr(use, name) for use in third)
    ]
    return found
