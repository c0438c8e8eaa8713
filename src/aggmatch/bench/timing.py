"""Time and memory of calls on a device: measured by events on CUDA, and by the clock of the CPU otherwise."""

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
"""Number of timed steps on CUDA by default."""
PART_CALLS = 100
"""Largest number of timed calls of anything except the step."""
PATIENCE = 5.0
"""Seconds for all calls, except for steps on CUDA: on a CPU one step may take half a minute."""
LEAST_CALLS = 5
HEAD_START = 100_000_000
"""Cycles for which a GPU waits while the host queues calls: about 50 ms, enough for thousands of calls."""


class Timing(NamedTuple):
    """Seconds of one call: median, 5th and 95th percentile of a number of calls."""

    median: float
    low: float
    high: float
    calls: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        """Summarise the times of single calls."""
        low, median, high = np.percentile(seconds, [5, 50, 95]).tolist()
        return cls(median, low, high, len(seconds))

    def to_dict(self) -> dict[str, float]:
        """Return plain values for JSON, in milliseconds."""
        return {"median_ms": 1e3 * self.median, "p5_ms": 1e3 * self.low, "p95_ms": 1e3 * self.high, "calls": self.calls}


@dataclass(frozen=True)
class Effort:
    """How many calls are timed: the number `wanted`, or if that is None, as many as fit into the time."""

    device: torch.device
    wanted: int | None = None

    def steps(self, function: Callable[[], object]) -> int:
        """Return the number of timed calls of a step."""
        if self.wanted is not None:
            return self.wanted
        return CALLS if self.device.type == "cuda" else self.fitting(function, LEAST_CALLS, CALLS)

    def parts(self, function: Callable[[], object]) -> int:
        """Return the number of timed calls of anything except the step."""
        return self.fitting(function, 1, PART_CALLS) if self.wanted is None else min(self.wanted, PART_CALLS)

    def fitting(self, function: Callable[[], object], least: int, most: int) -> int:
        """Return how many calls fit into the time, between `least` and `most`; makes one call to find out."""
        synchronize(self.device)
        started = time.perf_counter()
        function()
        synchronize(self.device)
        return min(max(least, affordable(time.perf_counter() - started)), most)

    def time_part(self, function: Callable[[], object], *, ahead: bool = True) -> Timing:
        """Time anything except the step."""
        return time_calls(function, self.device, self.parts(function), ahead=ahead)


def affordable(seconds: float) -> int:
    """Return the number of calls that fit into the time, given the seconds of one call."""
    return int(PATIENCE / max(seconds, 1e-9))


def time_calls(function: Callable[[], object], device: torch.device, calls: int, *, ahead: bool = False) -> Timing:
    """Time calls, each from the end of the previous call to its own end.

    On CUDA nothing waits for the device between calls. With `ahead`, the device starts after the host has queued many
    calls: the times are then those of the device alone, even if it is faster than the host.
    """
    return Timing.of(call_times(function, device, calls, ahead=ahead))


def call_times(function: Callable[[], object], device: torch.device, calls: int, *, ahead: bool = False) -> list[float]:
    """Return the seconds of calls; see `time_calls`."""
    if device.type == "cuda":
        return cuda_times(function, device, calls, ahead)
    marks = [time.perf_counter()]
    for _ in range(calls):
        function()
        marks.append(time.perf_counter())
    return [after - before for before, after in pairwise(marks)]


def cuda_times(function: Callable[[], object], device: torch.device, calls: int, ahead: bool) -> list[float]:
    """Return the seconds between events recorded after every call."""
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


def captured(function: Callable[[], object], generator: torch.Generator) -> Callable[[], object]:
    """Return the function as a CUDA graph, already warmed up; without CUDA, return the function itself."""
    if generator.device.type != "cuda":
        return function
    graph = Captured(function, generator)
    for _ in range(WARM_CALLS + 1):
        graph()
    return graph


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# Memory ----------------------------------------------------------------------------------------------------------


def release() -> None:
    """Free unused memory; a captured step and its trainer refer to each other, so this needs the garbage collector."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def reset_peak(device: torch.device) -> None:
    """Reset the peak of the memory."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):  # Linux only; otherwise the peak is unknown
            Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device: torch.device) -> int | None:
    """Return the peak memory since `reset_peak`: of tensors on CUDA, otherwise of the process; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return 1024 * kilobytes[0] if kilobytes else None
