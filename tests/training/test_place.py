"""Images on the device, in host memory or on disk: the same weights, bit for bit, and what happens if a disk fails."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.conftest import toy_settings

from aggmatch.data import DataSet, Split
from aggmatch.data.rows import file_behind, rows_of
from aggmatch.errors import AggMatchError
from aggmatch.methods import METHODS
from aggmatch.runs.checkpoint import pack
from aggmatch.training import place as places
from aggmatch.training.trainer import Trainer

PLACES = ("device", "host", "disk")


def trained(state: Trainer, steps: int = 6) -> Trainer:
    for _ in range(steps):
        state.step()
    return state


def content(state: Trainer) -> bytes:
    """All that a checkpoint of a state holds."""
    return pack(state.checkpoint())


@pytest.mark.parametrize("method", METHODS.names())
def test_the_place_of_the_images_changes_no_bit_of_a_checkpoint(toy_state, method):
    wanted = content(trained(toy_state(method, runtime__place="device")))
    for place in ("host", "disk"):
        assert content(trained(toy_state(method, runtime__place=place))) == wanted, place


@pytest.mark.parametrize("method", ["fixmatch", "featmatch", "paws", "supervised"])
def test_a_run_from_disk_resumes_bit_for_bit_although_batches_are_drawn_early(toy_resume, method):
    whole, resumed = toy_resume(method, runtime__place="disk")
    assert pack(whole) == pack(resumed)
