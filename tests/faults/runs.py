"""Short runs on digits, and what must be equal in two runs of the same settings."""

import json
from pathlib import Path
from typing import Any

from tests.faults.machine import Done, Fault, Machine

from aggmatch.runs.checkpoint import unpack
from aggmatch.storage.files import is_part

SETTINGS = {
    "data.name": "digits",
    "method.name": "aggmatch",
    "method.slots": 16,
    "method.subsets": 4,
    "model.name": "small-4",
    "train.batch": 10,
    "train.unlabeled_ratio": 2,
    "train.steps": 24,
    "train.log_every": 4,
    "train.evaluate_every": 8,
    "runtime.checkpoint_every": 6,
    "runtime.device": "cpu",
}
START = ["train", "--out", "run", *(word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}"))]
TIMES = ("seconds", "images_per_second", "crc32")
"""Values of a log that differ from run to run."""


def train(machine: Machine, folder: Path, fault: Fault = Fault()) -> Done:  # noqa: B008 - frozen
    """Start the run in `folder / "run"`, or continue it if it was started."""
    resume = ["--resume"] if (folder / "run/config.json").exists() else []
    return machine.run([*START, *resume, "--quiet"], folder, fault)


def outcome(folder: Path) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """The bytes of the final weights by name, and the lines of the log without times."""
    tensors = unpack((folder / "run/model.safetensors").read_bytes()).tensors
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_bytes().splitlines()]
    untimed = [{key: value for key, value in line.items() if key not in TIMES} for line in lines]
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}, untimed


def difference(folder: Path, expected: tuple[dict[str, bytes], list[dict[str, Any]]]) -> str:
    """What differs between a finished run and the expected one; empty if nothing does."""
    if not (folder / "run/summary.json").exists():
        return "the run is not finished"
    weights, log = outcome(folder)
    if weights != expected[0]:
        return "other weights"
    if log != expected[1]:
        return f"another log: steps {[line['step'] for line in log]}"
    if parts := [path.name for path in (folder / "run").rglob("*") if is_part(path)]:
        return f"left behind: {', '.join(parts)}"
    return ""
