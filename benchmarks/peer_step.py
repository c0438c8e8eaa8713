"""Time the training steps of any PyTorch script, from one optimizer step to the next.

    python peer_step.py [--warm 333] [--steps 555] SCRIPT [ARGUMENT ...]

The script itself is not changed. Every step of its optimizer records a time: an event on CUDA, without waiting for the
device, or the clock of the CPU. A step is everything between two updates of the weights: loading, views, forward and
backward pass, logging. After enough steps, the times are printed as one line of JSON and the process ends. This file
needs only torch 2.0 or later, so that it runs in the environment of another project.

The mean is the cost of a step. Workers of a data loader deliver batches in bursts: in a loop that waits for them, most
steps are short and a few are long, and the median can be a quarter of the mean. The first steps use batches that were
loaded before the start, two by each worker, and must not count.

In your own loop: create a `StepClock`, call `tick()` once per step, and read `times()` at the end.
"""

import argparse
import json
import os
import runpy
import statistics
import sys
import time
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook


class StepClock:
    """Records the time of every step; the first `warm` steps do not count."""

    def __init__(self, warm: int, steps: int) -> None:
        self.warm, self.steps = warm, steps
        self.marks: list[Any] = []
        """Events of the GPU, or seconds without one."""
        self.ticks = 0
        self.on_cuda = torch.cuda.is_available()

    @property
    def done(self) -> bool:
        """Whether enough steps are recorded."""
        return len(self.marks) > self.steps

    def tick(self) -> None:
        """Record the end of a step, without waiting for the device."""
        self.ticks += 1
        if self.ticks <= self.warm or self.done:
            return
        if not self.on_cuda:
            self.marks.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.marks.append(event)

    def times(self) -> list[float]:
        """Return the milliseconds of every counted step."""
        if not self.on_cuda:
            return [1e3 * (after - before) for before, after in pairwise(self.marks)]
        torch.cuda.synchronize()
        return [before.elapsed_time(after) for before, after in pairwise(self.marks)]


def describe(times: list[float], words: list[str]) -> dict[str, object]:
    """Return the statistics of the times with their provenance."""
    low, *_, high = statistics.quantiles(times, n=20, method="inclusive")
    return {
        "script": " ".join(words),
        "mean_ms": statistics.fmean(times),
        "median_ms": statistics.median(times),
        "p5_ms": low,
        "p95_ms": high,
        "steps": len(times),
        "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),  # noqa: UP017 - for the older Python of other projects
    }


def main() -> None:
    """Run the script until enough steps are timed."""
    parser = argparse.ArgumentParser(description="Time the training steps of a PyTorch script.")
    parser.add_argument("--warm", type=int, default=333, help="steps that do not count (default 333)")
    parser.add_argument("--steps", type=int, default=555, help="steps that count, at least 2 (default 555)")
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.warm < 0 or options.steps < 2:
        parser.error("--warm must be at least 0 and --steps at least 2")
    if not options.script.is_file():
        parser.error(f"there is no script {options.script}")
    words = [str(options.script), *options.arguments]
    clock = StepClock(options.warm, options.steps)
    timed: list[Optimizer] = []

    def after_step(optimizer: Optimizer, *_: object) -> None:
        if not timed:
            timed.append(optimizer)
        if optimizer is not timed[0]:  # a second optimizer of the same step
            return
        clock.tick()
        if clock.done:
            print(json.dumps(describe(clock.times(), words)), flush=True)
            os._exit(0)  # the script could catch an exception, and its workers would be waited for

    handle = register_optimizer_step_post_hook(after_step)
    sys.argv = words
    sys.path[0] = str(options.script.resolve().parent)
    try:
        runpy.run_path(str(options.script), run_name="__main__")
    finally:
        handle.remove()
    sys.exit(f"The script ended after {clock.ticks} optimizer steps, of {options.warm + options.steps + 1} needed.")


if __name__ == "__main__":
    main()
