"""Truncated and overwritten files of a run folder: the damage is detected, or it changes nothing that anybody reads."""

import hashlib
import shutil
import warnings
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.runs import SETTINGS
from tests.faults.tally import Tally

import aggmatch
from aggmatch.data import DataSet
from aggmatch.errors import AggMatchError
from aggmatch.inference import Snapshot
from aggmatch.runs.results import encode
from aggmatch.runs.stored import read_run
from aggmatch.training.begin import resume, start


def digest(values: Any) -> str:
    """A short hash of anything that has a text."""
    return hashlib.blake2b(repr(values).encode(), digest_size=8).hexdigest()


def tensors_of(module: Any) -> list[tuple[str, bytes]]:
    """The weights of a module."""
    return [(name, tensor.cpu().numpy().tobytes()) for name, tensor in module.state_dict().items()]


def read_everything(folder: Path, data: DataSet) -> dict[str, Any]:
    """All that commands read from a run folder: its results line, its split, its networks and what they predict."""
    run = read_run(folder)
    split = [run.drawn[name] for name in ("fold", "labeled", "labels", "unlabeled")]
    seen: dict[str, Any] = {"records": [*run.records], "split": split, "settings": run.settings.identity()}
    seen |= {"result": encode(run)} if run.finished else {"hardware": run.hardware}
    for path in run.snapshots:
        snapshot = Snapshot.load(path, run.settings)
        parts = [tensors_of(part) for part in (snapshot.online, snapshot.average, snapshot.method)]
        seen[path.name] = digest([snapshot.step, parts])
    if run.finished:
        model = aggmatch.TrainedModel.load(folder)
        seen["predictions"] = digest([model.classes, model.predict(data.test.pixels[:20]).numpy().tobytes()])
    return seen


def continue_run(folder: Path, data: DataSet) -> dict[str, Any]:
    """The weights to which a run continues, and the steps and losses of its log."""
    run = resume(folder, data=data)
    for _ in run.train():
        pass
    log = [(record["step"], record.get("loss"), record.get("accuracy_average")) for record in run.folder.records()]
    return {"weights": digest(tensors_of(run.state.average)), "log": digest(log)}


def harm(random: Random, content: bytes) -> tuple[bytes, str]:
    """Damage a file as disks do, and say how."""
    place = random.randrange(max(len(content), 1))
    match random.choice(("a flipped bit", "a flipped bit", "truncated", "a zeroed block", "a random block")):
        case "truncated":
            return content[:place], f"truncated to {place} of {len(content)} bytes"
        case "a flipped bit" if content:
            changed = bytes([content[place] ^ 1 << random.randrange(8)])
            return content[:place] + changed + content[place + 1 :], f"a flipped bit in byte {place}"
        case kind:
            size = min(random.choice((1, 4, 16, 512)), len(content) - place)
            block = bytes(size) if kind == "a zeroed block" else random.randbytes(size)
            return content[:place] + block + content[place + size :], f"{kind} of {size} bytes at {place}"


def try_damage(place: Path, cases: int, *, finished: bool, seed: int = 0) -> Tally:
    """Damage one file of a finished run, or of one that stopped half way, and read or continue it."""
    tally, random = Tally(f"damage to {'a finished' if finished else 'a stopped'} run"), Random(seed)
    data = aggmatch.load("digits")
    original, folder = place / "original", place / "damaged"
    run = start(aggmatch.resolve(SETTINGS), original, data=data)
    for record in run.train():
        if not finished and record["step"] == 20:
            break
    names = sorted(path.relative_to(original) for path in original.rglob("*") if path.is_file() and path.stat().st_size)
    expected = read_everything(original, data)
    shutil.copytree(original, place / "continued")
    continued = {} if finished else continue_run(place / "continued", data)
    shutil.copytree(original, folder)
    for number in range(cases):
        name = random.choice(names)
        content, how = harm(random, (original / name).read_bytes())
        (folder / name).write_bytes(content)
        outcome = judge(folder, data, expected, continued)
        if outcome in ("refused", "warned", "harmless", "like an earlier kill"):
            tally.add(outcome)
        else:
            tally.blame(f"case {number}, {name}, {how}: {outcome}")
        if finished:
            shutil.copyfile(original / name, folder / name)
        else:
            shutil.rmtree(folder)
            shutil.copytree(original, folder)
    return tally


def judge(folder: Path, data: DataSet, expected: dict[str, Any], continued: dict[str, Any]) -> str:
    """Read the folder and continue the run in it; say whether the damage was noticed, harmless, or what it changed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        refused, shorter, differing = 0, False, []
        for read, right in ((read_everything, expected), (continue_run, continued)):
            if not right:
                continue
            try:
                found = read(folder, data)
            except AggMatchError:
                refused += 1
                continue
            except Exception as error:
                return f"{type(error).__name__}: {error}"
            others = [key for key in right if found.get(key) != right[key]]
            if others and is_earlier(found, right):
                shorter = True
            else:
                differing += others
    if differing and not caught:
        return f"silently other {', '.join(differing)}"
    return "refused" if refused else "warned" if caught else "like an earlier kill" if shorter else "harmless"


def is_earlier(found: dict[str, Any], right: dict[str, Any]) -> bool:
    """Whether what was found of a stopped run is what a kill before its last line leaves."""
    if "hardware" not in right or found["hardware"] not in (None, right["hardware"]):
        return False
    same = all(found.get(key) == right[key] for key in right if key not in ("records", "hardware"))
    return same and found["records"] == right["records"][: len(found["records"])]
