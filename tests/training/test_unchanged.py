"""Training gives the recorded weights after 50 steps on digits: bit by bit on the same kind of processor."""

import hashlib
import json
import platform
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

import aggmatch

RECORDED = json.loads((Path(__file__).parent / "unchanged.json").read_text())
TOLERANCE = 1e-3
"""Relative difference of a loss between processors, which add in different orders."""


def digest(tensors: Mapping[str, Tensor]) -> str:
    """A hash of names and values."""
    hashed = hashlib.blake2b(digest_size=8)
    for name in sorted(tensors):
        hashed.update(name.encode())
        hashed.update(tensors[name].detach().contiguous().numpy().tobytes())
    return hashed.hexdigest()


def same_arithmetic() -> bool:
    """Whether this machine adds in the same order as the one that recorded the hashes."""
    here = [platform.machine(), torch.backends.cpu.get_cpu_capability(), torch.__version__]
    return here == RECORDED["arithmetic"]


@pytest.mark.parametrize("method", RECORDED["methods"])
def test_fifty_steps_give_the_recorded_weights(method, tmp_path, one_thread):
    recorded = RECORDED["methods"][method]
    settings = aggmatch.resolve(
        RECORDED["settings"] | {"method.name": method, "recipe": "paper"} | recorded["settings"]
    )
    run = aggmatch.start(settings, tmp_path / "run")
    losses = [record["loss"] for record in run.train()]

    assert losses == pytest.approx(recorded["losses"], rel=TOLERANCE)
    if same_arithmetic():
        modules = {"online": run.state.online, "average": run.state.average, "method": run.state.method}
        assert {name: digest(module.state_dict()) for name, module in modules.items()} == recorded["weights"]
