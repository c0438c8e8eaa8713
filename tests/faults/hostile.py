"""Hostile inputs: each is read or refused with an `AggMatchError`, in bounded time and memory, and runs no code.

Inputs are tried in forked children, so that a crash of the process counts as a wrong outcome of one input.
"""

import os
import resource
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from tests.faults.inputs import Try, readers
from tests.faults.tally import Tally

from aggmatch.errors import AggMatchError

PATIENCE = 20
"""Seconds that one input may take."""
MEMORY = 700 << 20
"""Bytes by which one child may grow."""
BATCH = 200
"""Inputs of one child."""


def try_hostile(place: Path, cases: int, seed: int = 0) -> Iterator[Tally]:
    """Try many inputs of each kind; yields a tally for each kind."""
    place.mkdir(parents=True, exist_ok=True)
    work = place / "work"
    work.mkdir()
    (work / "evil.py").write_text(f"import pathlib\npathlib.Path({str(place / 'ran')!r}).touch()\n")
    before = Path.cwd()
    os.chdir(work)
    try:
        for name, read, valid, change in readers(place / "inputs-of"):
            yield try_kind(place, name, read, valid, change, cases, Random(f"{seed} {name}"))
    finally:
        os.chdir(before)


def try_kind(
    place: Path,
    name: str,
    read: Try,
    valid: bytes,
    change: Callable[[Random, bytes], bytes],
    cases: int,
    random: Random,
) -> Tally:
    """Try many inputs of one kind, a batch in each child."""
    tally = Tally(f"hostile {name}")
    outside = {path.name for path in place.iterdir()}
    tried = 0
    while tried < cases:
        inputs = [change(random, valid) for _ in range(min(BATCH, cases - tried))]
        outcomes, end = run_batch(read, inputs)
        for outcome, raw in zip(outcomes, inputs, strict=False):
            if outcome in ("read", "refused"):
                tally.add(outcome)
            else:
                tally.blame(f"{outcome}: {raw[:200]!r}")
        if end:
            tally.blame(f"{end}: {inputs[len(outcomes)][:200]!r}")
        tried += len(outcomes) + bool(end)
    if new := {path.name for path in place.iterdir()} - outside:
        tally.blame(f"wrote or ran something: {new}")
    return tally


def run_batch(read: Try, inputs: list[bytes]) -> tuple[list[str], str]:
    """Read inputs in a child; return their outcomes, and why the child ended if it did not read them all."""
    answer, question = os.pipe()
    child = os.fork()
    if not child:
        os.close(answer)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        warnings.simplefilter("ignore")
        start_size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for raw in inputs:
            signal.alarm(PATIENCE)
            outcome = attempt(read, raw)
            if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start_size > MEMORY >> 10:
                outcome = "too much memory"
            os.write(question, outcome.replace("\n", " ").encode(errors="replace")[:300] + b"\n")
        os._exit(0)
    os.close(question)
    with os.fdopen(answer, encoding="utf-8", errors="replace") as file:
        outcomes = file.read().splitlines()
    _, status = os.waitpid(child, 0)
    number = os.waitstatus_to_exitcode(status)
    return outcomes, "" if number == 0 else "a hang" if number == -signal.SIGALRM else f"a crash ({number})"


def attempt(read: Try, raw: bytes) -> str:
    """How reading one input ended."""
    try:
        read(raw)
    except AggMatchError:
        return "refused"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "read"
