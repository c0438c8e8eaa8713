"""Timing of calls, their number, and their memory."""

import mmap
import time
from pathlib import Path

import pytest
import torch

from aggmatch.bench import timing
from aggmatch.bench.timing import Effort, Timing, peak_bytes, release, reset_peak, time_calls

CPU = torch.device("cpu")


def test_percentiles_are_those_of_the_single_calls():
    found = Timing.of([float(number) for number in range(101)])
    assert found == (50.0, 5.0, 95.0, 101)
    assert found.to_dict() == {"median_ms": 50e3, "p5_ms": 5e3, "p95_ms": 95e3, "calls": 101}


def test_exactly_the_wanted_calls_are_made_and_timed():
    made: list[float] = []

    def call():
        made.append(time.perf_counter())
        time.sleep(0.002)

    found = time_calls(call, CPU, 7)
    assert found.calls == len(made) == 7
    assert 0.002 <= found.low <= found.median <= found.high
    assert found.median * 7 == pytest.approx(time.perf_counter() - made[0], rel=1)


def test_a_wanted_number_of_steps_is_used():
    effort = Effort(CPU, wanted=1000)
    assert effort.steps(pytest.fail) == 1000, "no call is needed to know the number"
    assert effort.parts(pytest.fail) == timing.PART_CALLS
    assert Effort(CPU, wanted=3).parts(pytest.fail) == 3


def test_as_many_calls_are_made_as_fit_into_the_time(monkeypatch):
    monkeypatch.setattr(timing, "PATIENCE", 0.1)
    slow, fast, effort = lambda: time.sleep(0.2), lambda: None, Effort(CPU)
    assert effort.steps(slow) == timing.LEAST_CALLS
    assert effort.parts(slow) == 1
    assert effort.steps(fast) == timing.CALLS
    assert effort.parts(fast) == timing.PART_CALLS
    assert timing.LEAST_CALLS <= effort.steps(lambda: time.sleep(0.009)) <= 11


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_the_peak_includes_freed_memory_until_it_is_reset():
    release()
    reset_peak(CPU)
    before = peak_bytes(CPU)
    with mmap.mmap(-1, 160_000_000) as memory:  # from the system, not from memory that earlier tests freed
        for place in range(0, len(memory), mmap.PAGESIZE):
            memory[place] = 1
    grown = peak_bytes(CPU)
    assert before is not None
    assert grown is not None
    assert 120e6 < grown - before < 200e6
    reset_peak(CPU)
    after = peak_bytes(CPU)
    assert after is not None
    assert after < grown - 100e6


def test_without_cuda_a_function_is_not_captured():
    def call():
        pass

    assert timing.captured(call, torch.Generator()) is call
