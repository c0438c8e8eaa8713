"""A full disk, an I/O error and a read-only folder at every write in turn.

What existed before is still there or replaced as a whole, the command ends with one sentence and code 2 or does its
work, and a run continues to the same weights afterwards.
"""

import errno
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from PIL import Image
from tests.faults.machine import Done, Fault, Machine
from tests.faults.runs import difference, outcome, train
from tests.faults.tally import Tally

ERRORS = {
    "full disk": (errno.ENOSPC, True),
    "I/O error": (errno.EIO, False),
    "read-only folder": (errno.EROFS, True),
}
COMMANDS = {
    "predict": (["predict", "run", "image.png", "--out", "out.csv"], "out.csv"),
    "results": (["results", "run", "--out", "out.jsonl"], "out.jsonl"),
    "export": (["export", "run", "--out", "out.onnx"], "out.onnx"),
    "report": (["report", "run", "--out", "out.html", "--quiet"], "out.html"),
}
"""Command → its words and the file that it writes."""


def is_clean(done: Done) -> str:
    """What is wrong with how a command ended; empty if it did its work or failed with one sentence."""
    if "Traceback" in done.err:
        return f"a traceback: {done.err.strip()[-300:]}"
    errors = [line for line in done.err.splitlines() if not line.startswith("Warning: ")]
    if done.code == 0:
        return ""
    if done.code != 2 or len(errors) != 1 or not errors[0].startswith("Error: "):
        return f"code {done.code} and {len(errors)} lines: {done.err.strip()[-300:]}"
    return ""


def try_training(machine: Machine, place: Path, every: int = 1) -> Tally:
    """Let one write of a training run fail, then let the run continue; of all writes, every N-th."""
    tally = Tally("a write of train fails")
    whole = place / "whole"
    whole.mkdir(parents=True)
    done = train(machine, whole)
    assert done.code == 0, done.err
    expected = outcome(whole)
    for name, (error, lasting) in ERRORS.items():
        for event in range(1, done.events + 1, every):
            folder = place / f"train-{error}-{event}"
            folder.mkdir()
            ended = train(machine, folder, Fault(event, error, lasting))
            problem = is_clean(ended)
            again = train(machine, folder)
            problem = problem or is_clean(again) or difference(folder, expected)
            if problem:
                tally.blame(f"{name} at write {event} of {done.events}: {problem}")
            else:
                tally.add(f"{name}: {'one sentence' if ended.code else 'finished'}, then the same weights")
            shutil.rmtree(folder)
    return tally


def try_commands(machine: Machine, place: Path, names: Iterable[str] = COMMANDS, every: int = 1) -> Iterable[Tally]:
    """Let one write of a command fail whose output exists already; yields a tally for each command."""
    place.mkdir(parents=True, exist_ok=True)
    if not (place / "run").exists():
        done = train(machine, place)
        assert done.code == 0, done.err
        Image.new("L", (8, 8), 128).save(place / "image.png")
    for name in names:
        words, out = COMMANDS[name]
        yield try_command(machine, place, name, words, place / out, every)


def try_command(machine: Machine, place: Path, name: str, words: Sequence[str], out: Path, every: int) -> Tally:
    """Let one write of a command fail; of all writes, every N-th."""
    tally = Tally(f"a write of {name} fails")
    before = files(place)
    done = machine.run(words, place)
    assert done.code == 0, done.err
    old = out.read_bytes()
    for what, (error, lasting) in ERRORS.items():
        for event in range(1, done.events + 1, every):
            out.write_bytes(old)
            ended = machine.run(words, place, Fault(event, error, lasting))
            problem = is_clean(ended)
            after = files(place)
            if after.pop(str(out.relative_to(place)), None) is None:
                problem = problem or "the old file is gone"
            parts = [path for path in after if path not in before]
            for path in parts:
                (place / path).unlink()
                after.pop(path)
            if error == errno.ENOSPC and parts:
                problem = problem or f"left behind: {parts}"
            if after != before:
                problem = problem or "another file has changed"
            if out.read_bytes() != old and ended.code:
                problem = problem or "the old file has changed"
            if problem:
                tally.blame(f"{what} at write {event} of {done.events}: {problem}")
            else:
                tally.add(f"{what}: {'one sentence' if ended.code else 'finished'}")
    out.unlink()
    return tally


def files(place: Path) -> dict[str, bytes]:
    """The content of every file below a folder."""
    found = (Path(folder, name) for folder, _, names in os.walk(place) for name in names)
    return {str(path.relative_to(place)): path.read_bytes() for path in found}
