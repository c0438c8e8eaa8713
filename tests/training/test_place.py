"""Images on the device, in host memory or on disk: the same weights, bit for bit, and what happens if a disk fails."""

import os
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.conftest import toy_settings
from tests.training.test_cuda_graph import assert_alike, make, on_gpu

import aggmatch
from aggmatch.data.rows import FileRows, MemoryRows, as_tensor, file_behind
from aggmatch.errors import AggMatchError
from aggmatch.methods import METHODS
from aggmatch.runs.checkpoint import pack, unpack
from aggmatch.settings import resolve
from aggmatch.training import place as places
from aggmatch.training.ahead import ReadAhead
from aggmatch.training.place import choose_place, put_images
from aggmatch.training.trainer import Trainer

CPU, GPU = torch.device("cpu"), torch.device("cuda")
PIXELS = torch.zeros(10, 3, 8, 8, dtype=torch.uint8)


def trained(state: Trainer, steps: int = 6) -> Trainer:
    for _ in range(steps):
        state.step()
    return state


def content(state: Trainer) -> bytes:
    """All that a checkpoint of a state holds."""
    return pack(state.checkpoint())


@pytest.fixture
def mapped_data(toy_data, tmp_path):
    """The toy data with training images that are a map of a file."""
    np.save(tmp_path / "train.npy", toy_data.train.pixels.numpy())
    pixels = as_tensor(np.load(tmp_path / "train.npy", mmap_mode="r"))
    return replace(toy_data, train=replace(toy_data.train, pixels=pixels))


# The same weights ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS.names())
def test_the_place_of_the_images_changes_no_bit_of_a_checkpoint(toy_state, method):
    wanted = content(trained(toy_state(method, runtime__place="device")))
    for place in ("host", "disk"):
        state = toy_state(method, runtime__place=place)
        assert (state.ahead is None) == (place == "host"), "on a CPU, the host is the device"
        assert content(trained(state)) == wanted, place


@pytest.mark.parametrize("method", ["fixmatch", "featmatch"])
def test_rows_of_host_memory_are_read_ahead_with_the_same_result(toy_state, monkeypatch, method):
    wanted = content(trained(toy_state(method)))
    monkeypatch.setattr("aggmatch.training.trainer.choose_place", lambda *_: "host")  # as with a GPU
    state = toy_state(method)
    assert isinstance(state.inputs.rows, MemoryRows)
    assert content(trained(state)) == wanted


@pytest.mark.parametrize("method", ["fixmatch", "featmatch", "paws", "supervised"])
def test_a_run_from_disk_resumes_bit_for_bit_although_batches_are_drawn_early(toy_resume, method):
    whole, resumed = toy_resume(method, runtime__place="disk")
    assert pack(whole) == pack(resumed)


@pytest.mark.parametrize(("first", "second"), [("disk", "device"), ("device", "disk")])
def test_a_run_may_move_to_another_place_when_it_is_resumed(toy_state, first, second):
    wanted = content(trained(toy_state("fixmatch")))
    resumed = toy_state("fixmatch", runtime__place=second)
    resumed.restore(trained(toy_state("fixmatch", runtime__place=first), 3).checkpoint())
    assert content(trained(resumed, 3)) == wanted


def test_restoring_forgets_batches_that_were_drawn_before(toy_state):
    wanted = content(trained(toy_state("fixmatch")))
    state = toy_state("fixmatch", runtime__place="disk")
    begin = content(state)
    trained(state, 4).restore(unpack(begin))
    assert content(trained(state)) == wanted


def test_a_map_of_a_data_set_is_used_as_it_is(mapped_data, toy_split, toy_state, own_cache):
    before = {path for path in own_cache.rglob("*") if path.is_file()}
    state = Trainer(toy_settings("fixmatch", runtime__place="disk"), mapped_data, toy_split, CPU)
    assert isinstance(state.inputs.rows, FileRows)
    assert state.inputs.rows.part.path.name == "train.npy"
    new = {path for path in own_cache.rglob("*") if path.is_file()} - before
    assert not [path for path in new if path.stat().st_size > mapped_data.train.pixels.nbytes]
    assert content(trained(state)) == content(trained(toy_state("fixmatch")))


# Choice of the place -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "device", "free_gpu", "free_host", "expected"),
    [
        ("auto", GPU, 2.0, 0.0, "device"),
        ("auto", GPU, 1.9, 1.0, "host"),  # they are in memory already: without them, 2 would be free
        ("auto", GPU, 1.9, 0.9, "disk"),
        ("auto", CPU, 0.0, 1.0, "device"),
        ("auto", CPU, 0.0, 0.9, "disk"),
        ("device", GPU, 0.0, 0.0, "device"),
        ("host", GPU, 9.0, 0.0, "host"),
        ("host", CPU, 9.0, 0.0, "device"),
        ("disk", GPU, 9.0, 9.0, "disk"),
    ],
)
def test_images_are_in_the_first_place_with_room(monkeypatch, wanted, device, free_gpu, free_host, expected):
    free = {"cuda": free_gpu, "cpu": free_host}
    monkeypatch.setattr(places, "free_memory", lambda device: free[device.type] * PIXELS.nbytes)
    assert choose_place(wanted, PIXELS, device) == expected


def test_a_map_takes_memory_only_where_it_is_needed(mapped_data, toy_data):
    settings = toy_settings().runtime
    assert file_behind(put_images(mapped_data, "host", GPU, settings).train.pixels) is None
    assert put_images(mapped_data, "device", GPU, settings) is mapped_data
    assert put_images(toy_data, "device", CPU, settings) is toy_data


def test_images_are_written_to_disk_once(toy_data, tmp_path):
    runtime = replace(toy_settings().runtime, cache_dir=str(tmp_path))
    first = put_images(toy_data, "disk", CPU, runtime)
    written = {path: path.stat().st_ino for path in (tmp_path / "pixels").iterdir()}
    again = put_images(toy_data, "disk", CPU, runtime)
    assert {path: path.stat().st_ino for path in (tmp_path / "pixels").iterdir()} == written
    for placed in (first, again):
        assert file_behind(placed.train.pixels) is not None
        assert placed.fingerprint == toy_data.fingerprint
        assert placed.test_fingerprint == toy_data.test_fingerprint


def test_the_files_of_one_data_set_never_displace_each_other(toy_data, tmp_path, monkeypatch):
    monkeypatch.setattr(places, "LIMIT", 1000)  # room for the heads of the files
    runtime = replace(toy_settings().runtime, cache_dir=str(tmp_path))
    other = replace(toy_data, train=replace(toy_data.train, pixels=toy_data.train.pixels + 1))
    for data in (other, toy_data, toy_data):
        placed = put_images(data, "disk", CPU, runtime)
        assert all(file_behind(part.pixels) for part in (placed.train, placed.test))
    assert len(list((tmp_path / "pixels").iterdir())) == 2, "the images of the other data set are removed"


def test_a_damaged_file_of_images_is_written_again(toy_data, tmp_path):
    runtime = replace(toy_settings().runtime, cache_dir=str(tmp_path))
    part = file_behind(put_images(toy_data, "disk", CPU, runtime).train.pixels)
    assert part is not None
    damaged = bytearray(part.path.read_bytes())
    damaged[part.offset + 100] ^= 1
    part.path.write_bytes(damaged)
    assert put_images(toy_data, "disk", CPU, runtime).fingerprint == toy_data.fingerprint


def test_a_cache_folder_that_cannot_be_written_is_an_error(toy_data, tmp_path):
    (tmp_path / "file").touch()
    runtime = replace(toy_settings().runtime, cache_dir=str(tmp_path / "file"))
    with pytest.raises(AggMatchError, match=r"Cannot keep .* of images in .*runtime\.cache_dir"):
        put_images(toy_data, "disk", CPU, runtime)


# Faults --------------------------------------------------------------------------------------------------------------


def test_a_disk_that_fails_during_a_run_ends_it_with_one_error(mapped_data, toy_split, tmp_path):
    state = trained(Trainer(toy_settings("fixmatch", runtime__place="disk"), mapped_data, toy_split, CPU), 2)
    os.truncate(tmp_path / "train.npy", 1000)
    with pytest.raises(AggMatchError, match=r"Cannot read images from .*train\.npy: it has become shorter"):
        trained(state, 4)


def test_only_so_many_batches_are_drawn_early_and_none_is_overwritten():
    class Slow:
        shape: tuple[int, ...] = (10, 1, 2, 2)
        readers = 2

        def read(self, index, out):
            time.sleep(0.005)
            out[...] = index[:, None, None, None]

    drawn = iter(range(100))
    position = 0

    def draw():
        nonlocal position
        position = next(drawn)
        return torch.tensor([position % 3]), torch.tensor([position % 10, 0])

    ahead = ReadAhead(Slow(), torch.tensor([4, 5, 6]), draw, lambda: {"position": position}, CPU)
    for step in range(9):
        place, unlabeled, labeled_images, unlabeled_images = ahead.next()
        assert place.tolist() == [step % 3]
        assert labeled_images.flatten().unique().tolist() == [4 + step % 3]
        assert unlabeled_images[:, 0, 0, 0].tolist() == unlabeled.tolist() == [step % 10, 0]
        assert ahead.streams == {"position": step}
        assert step < position <= step + 2


# A whole run ---------------------------------------------------------------------------------------------------------

BIG = """
from pathlib import Path
import numpy as np, torch
from aggmatch import Images
from aggmatch.data import Source

def read(folder):
    pixels = torch.from_numpy(np.load(folder / "images.npy", mmap_mode="r"))
    labels = torch.arange(len(pixels)) % 2
    return Images(pixels[100:], labels[100:]), Images(pixels[:100], labels[:100])

BIG = Source("big", "Many images.", ("a", "b"), (3, 64, 64), 19_900, 100, mirror=True, read=read)
"""
MEASURE = """
import sys
import aggmatch, aggmatch.training.run, torch

def anonymous():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1000

place, folder = sys.argv[1:]
changes = {"data.name": f"{folder}/big.py:BIG", "data.labels": 4, "method.name": "fixmatch", "model.name": "small-4"}
changes |= {"train.steps": 2, "train.batch": 2, "runtime.device": "cpu"}
changes |= {"runtime.place": place, "runtime.data_dir": folder, "runtime.threads": 1}
before = anonymous()
run = aggmatch.start(aggmatch.resolve(changes), f"{folder}/{place}")
print(run.state.place, anonymous() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_a_large_set_takes_its_size_in_host_memory_and_almost_none_on_disk(tmp_path):
    images = np.lib.format.open_memmap(tmp_path / "images.npy", "w+", np.uint8, (20_000, 3, 64, 64))
    size = images.nbytes / 1e6
    del images  # a sparse file: it takes no room on the disk either
    (tmp_path / "big.py").write_text(BIG)
    taken = {}
    for place in ("disk", "host"):
        command = [sys.executable, "-W", "error", "-c", MEASURE, place, str(tmp_path)]
        output = subprocess.run(command, capture_output=True, text=True, check=False)
        assert output.returncode == 0, output.stderr
        name, megabytes = output.stdout.split()
        taken[name] = float(megabytes)
    assert taken["disk"] < 0.3 * size
    assert taken["device"] == pytest.approx(size, rel=0.3)


def test_a_resumed_run_may_choose_another_place(tmp_path):
    changes = {"data.name": "digits", "method.name": "fixmatch", "model.name": "small-4", "train.steps": 6}
    changes |= {"train.batch": 10, "train.unlabeled_ratio": 2, "runtime.checkpoint_every": 3}
    whole = aggmatch.start(resolve(changes), tmp_path / "whole")
    list(whole.train())
    parts = aggmatch.start(resolve(changes | {"runtime.place": "disk"}), tmp_path / "parts")
    records = parts.train()
    assert isinstance(records, Generator)
    while parts.state.steps_done < 3:
        next(records)
    records.close()
    resumed = aggmatch.resume(tmp_path / "parts", {"runtime.place": "device"})
    list(resumed.train())
    assert resumed.folder.model.read_bytes() == whole.folder.model.read_bytes()


def test_the_command_says_where_images_are_only_if_that_is_not_the_device(run):
    options = ("digits", "--labels", 10, "--steps", 2, "--set", "model.name=small-4", "--set", "train.batch=10")
    code, out, err = run("train", *options, "--out", "resident")
    assert code == 0, err
    assert "training images" not in out
    code, out, err = run("train", *options, "--set", "runtime.place=disk", "--out", "disk")
    assert code == 0, err
    assert "The training images, 0.0 GB, stay on disk: batches are read ahead" in out


# On a GPU ------------------------------------------------------------------------------------------------------------


@on_gpu
@pytest.mark.parametrize("model", ["small-4", "wrn-10-2"])
@pytest.mark.parametrize("place", ["host", "disk"])
@pytest.mark.parametrize("method", ["fixmatch", "aggmatch", "featmatch", "paws", "supervised"])
def test_a_captured_step_learns_the_same_from_images_elsewhere(toy_data, toy_split, method, place, model):
    resident = make(toy_data, toy_split, method, model__name=model)
    elsewhere = make(toy_data, toy_split, method, model__name=model, runtime__place=place)
    for _ in range(12):
        resident.step()
        elsewhere.step()
    assert elsewhere.graph is not None
    assert elsewhere.ahead is not None
    assert elsewhere.checkpoint().facts["unlabeled_stream"] == resident.checkpoint().facts["unlabeled_stream"]
    assert_alike(resident, elsewhere)


@on_gpu
@pytest.mark.parametrize("place", ["host", "disk"])
def test_the_images_of_every_captured_step_are_those_of_its_indices(toy_data, toy_split, place):
    state = make(toy_data, toy_split, "fixmatch", runtime__place=place)
    pixels = toy_data.train.pixels.cuda()
    differences = torch.zeros(1, device="cuda")
    compute = state.compute

    def checked(position_B, unlabeled_B, labeled_images, unlabeled_images):
        differences.add_((labeled_images != pixels[state.labeled_index[position_B]]).sum())
        differences.add_((unlabeled_images != pixels[unlabeled_B]).sum())
        compute(position_B, unlabeled_B, labeled_images, unlabeled_images)

    state.run_step.function = checked
    for _ in range(200):
        state.step()
    assert state.graph is not None
    assert differences.item() == 0
