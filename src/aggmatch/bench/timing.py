"""Times and memory of calls on a device: by events on CUDA, by the processor's clock elsewhere."""

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch

from aggmatch.training.cuda_graph import WARM_CALLS, Captured

CALLS = 500
"""Steps that are timed on CUDA where no number is asked for."""
PART_CALLS = 100
"""Most calls that are timed of what stands beside the step."""
PATIENCE = 5.0
"""Seconds that may go into the calls, except for steps on CUDA: on a CPU one can take half a minute."""
LEAST_CALLS = 5
HEAD_START = 100_000_000
"""Cycles that a GPU idles while the host queues calls: some 50 ms, in which it queues thousands."""


class Timing(NamedTuple):
    """Seconds of one call: the median of so many, with the 5th and 95th percentile."""

    median: float
    low: float
    high: float
    calls: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        """Summary of the times of single calls."""
        low, median, high = np.percentile(seconds, [5, 50, 95]).tolist()
        return cls(median, low, high, len(seconds))

    def to_dict(self) -> dict[str, float]:
        """For JSON, in milliseconds."""
        return {
            "median_ms": 1e3 * self.median,
            "p5_ms": 1e3 * self.low,
            "p95_ms": 1e3 * self.high,
            "calls": self.calls,
        }


@dataclass(frozen=True)
class Effort:
    """How many calls of a function are timed: as many as wanted or, if that is None, as many as are worth it."""

    device: torch.device
    wanted: int | None = None

    def steps(self, function: Callable[[], object]) -> int:
        """Calls to time of a step."""
        if self.wanted is not None:
            return self.wanted
        return CALLS if self.device.type == "cuda" else self.worth(function, LEAST_CALLS, CALLS)

    def parts(self, function: Callable[[], object]) -> int:
        """Calls to time of something that stands beside the step."""
        return self.worth(function, 1, PART_CALLS) if self.wanted is None else min(self.wanted, PART_CALLS)

    def worth(self, function: Callable[[], object], least: int, most: int) -> int:
        """Calls that are worth their time: one that does not count tells what it takes."""
        synchronize(self.device)
        started = time.perf_counter()
        function()
        synchronize(self.device)
        return min(max(least, affordable(time.perf_counter() - started)), most)


def affordable(seconds: float) -> int:
    """Calls that fit into the time that may go into them, given the time of one."""
    return int(PATIENCE / max(seconds, 1e-9))


def time_calls(function: Callable[[], object], device: torch.device, calls: int, *, ahead: bool = False) -> Timing:
    """Time of one call, from the end of the call before it to its own end, so nothing between them is left out.

    On CUDA nothing waits for the device meanwhile. With `ahead` the host gets a head start: the times are then those
    of the device alone, even where it works faster than it is given work.
    """
    return Timing.of((cuda_times if device.type == "cuda" else host_times)(function, device, calls, ahead))


def cuda_times(function: Callable[[], object], device: torch.device, calls: int, ahead: bool) -> list[float]:
    """Seconds between events that are recorded after every call."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
    with torch.cuda.device(device):
        torch.cuda.synchronize()
        if ahead:
            torch.cuda._sleep(HEAD_START)
        events[0].record()
        for event in events[1:]:
            function()
            event.record()
        torch.cuda.synchronize()
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(events)]


def host_times(function: Callable[[], object], _device: torch.device, calls: int, _ahead: bool) -> list[float]:
    """Seconds between readings of the clock after every call."""
    marks = [time.perf_counter()]
    for _ in range(calls):
        function()
        marks.append(time.perf_counter())
    return [after - before for before, after in pairwise(marks)]


def captured(function: Callable[[], None], generator: torch.Generator) -> Callable[[], None]:
    """The function as a warm CUDA graph of its own; elsewhere than on CUDA the function as it is."""
    if generator.device.type != "cuda":
        return function
    graph = Captured(function, generator)
    for _ in range(WARM_CALLS + 1):
        graph()
    return graph


def synchronize(device: torch.device) -> None:
    """Wait for what a GPU has been given to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# Memory ----------------------------------------------------------------------------------------------------------


def release() -> None:
    """Free what is no longer referred to; a captured step and its state refer to each other."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def reset_peak(device: torch.device) -> None:
    """Forget the peak of the memory so far."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):  # Linux only; elsewhere the peak is that of the process since its start, or unknown
            Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device: torch.device) -> int | None:
    """Most memory held at once since `reset_peak`: tensors on CUDA, elsewhere the whole process; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return 1024 * kilobytes[0] if kilobytes else None
