"""SIGKILL at random moments and inside writes: the run continues to the same weights and the same log."""

import shutil
import time
from pathlib import Path
from random import Random

from tests.faults.machine import Fault, Machine
from tests.faults.runs import difference, outcome, train
from tests.faults.tally import Tally

MOST = 5
"""Most kills of one run."""


def try_kills(machine: Machine, place: Path, kills: int, seed: int = 0) -> Tally:
    """Kill runs, several times each, and let each finish; half of the kills are inside writes."""
    tally, random = Tally("SIGKILL during training"), Random(seed)
    place.mkdir(parents=True, exist_ok=True)
    for _ in range(2):  # the first one warms up
        shutil.rmtree(place / "whole", ignore_errors=True)
        (place / "whole").mkdir()
        started = time.monotonic()
        done = train(machine, place / "whole")
        assert done.code == 0, done.err
    duration, expected = time.monotonic() - started, outcome(place / "whole")
    while tally.cases < kills:
        folder = place / f"killed-{tally.cases}"
        folder.mkdir()
        faults: list[Fault] = []
        for _ in range(random.randint(1, MOST)):
            fault = random_kill(random, done.events, duration)
            ended = train(machine, folder, fault)
            if ended.code == -9:
                faults.append(fault)
        ended = train(machine, folder)
        if problem := difference(folder, expected):
            tally.blame(f"{faults}: {problem}. {ended.err.strip()[-300:]}")
        else:
            for fault in faults:
                tally.add("inside a write" if fault.event else "at a random moment")
        shutil.rmtree(folder)
    return tally


def random_kill(random: Random, events: int, duration: float) -> Fault:
    """A kill at an event of a run, or after some time."""
    if random.random() < 0.5:
        return Fault(event=random.randint(1, events))
    return Fault(kill_after=random.uniform(0, duration))
