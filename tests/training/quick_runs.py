"""Runs of a second on digits, which several test files need."""

from tests.conftest import dotted

import aggmatch
from aggmatch.config import Layer
from aggmatch.runs.folder import RunFolder
from aggmatch.settings import RunSettings, resolve

QUICK = {
    "data.name": "digits",
    "recipe": "cold-start",
    "model.name": "small-4",
    "method.slots": 16,
    "method.subsets": 4,
    "train.steps": 24,
    "train.batch": 10,
    "train.unlabeled_ratio": 2,
    "train.log_every": 5,
    "train.evaluate_every": 10,
    "runtime.checkpoint_every": 4,
}


def quick(**changes: object) -> RunSettings:
    """The settings with changes; `optim__lr` stands for `optim.lr`."""
    return resolve([Layer("the test", QUICK | dotted(changes))])


def complete(run: aggmatch.Run) -> aggmatch.Run:
    """Train a run to its end."""
    for _ in run.train():
        pass
    return run


def model_bytes(folder: RunFolder) -> bytes:
    return folder.model.read_bytes()
