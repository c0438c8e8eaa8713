import resource
from pathlib import Path

import pytest
import torch

from aggmatch.errors import AggMatchError
from aggmatch.runs.checkpoint import Checkpoint, found, load_newest, pack, save, unpack
from aggmatch.storage.files import digest, write_atomically


def checkpoint(value: float) -> Checkpoint:
    tensors = {"online.weight": torch.full((2, 3), value), "generator.state": torch.arange(4, dtype=torch.uint8)}
    return Checkpoint(tensors, {"step": int(value), "stream": {"block": 1}, "names": ["a", "b"]})


def test_a_checkpoint_survives_a_round_trip():
    original = checkpoint(3)
    copy = unpack(pack(original))
    assert copy.facts == original.facts
    assert all(torch.equal(copy.tensors[name], tensor) for name, tensor in original.tensors.items())
    assert list(copy.section("online")) == ["weight"]


def test_strided_tensors_keep_their_values(tmp_path: Path):
    channels_last = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    copy = unpack(pack(Checkpoint({"x": channels_last, "half": channels_last[:, :1]}, {})))
    assert torch.equal(copy.tensors["x"], channels_last)
    assert torch.equal(copy.tensors["half"], channels_last[:, :1])


def test_the_last_two_are_kept_and_the_newest_is_loaded(tmp_path: Path):
    for step in (5, 10, 100_000_000, 15):
        save(tmp_path, step, checkpoint(step))
    assert [int(path.name.split("-")[1]) for path in found(tmp_path)] == [100_000_000, 15]
    newest = load_newest(tmp_path)
    assert newest is not None
    assert newest.facts["step"] == 100_000_000


@pytest.mark.parametrize("fault", ["truncated", "flipped", "emptied"])
def test_a_corrupt_checkpoint_causes_a_warning_and_the_previous_one_is_loaded(tmp_path: Path, fault):
    save(tmp_path, 1, checkpoint(1))
    path = save(tmp_path, 2, checkpoint(2))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes({"truncated": bytes(data[:-7]), "flipped": bytes(data), "emptied": b""}[fault])
    with pytest.warns(UserWarning, match=f"{path.name} is corrupt"):
        newest = load_newest(tmp_path)
    assert newest is not None
    assert newest.facts["step"] == 1


def test_a_file_without_tensors_is_corrupt_even_if_its_digest_matches(tmp_path: Path):
    save(tmp_path, 1, checkpoint(1))
    (tmp_path / f"step-00000002-{digest(b'no tensors')}.safetensors").write_bytes(b"no tensors")
    with pytest.warns(UserWarning, match="step-00000002-.* is corrupt"):
        newest = load_newest(tmp_path)
    assert newest is not None
    assert newest.facts["step"] == 1


def test_it_is_an_error_if_all_checkpoints_are_corrupt_but_not_if_there_are_none(tmp_path: Path):
    assert load_newest(tmp_path) is None
    save(tmp_path, 1, checkpoint(1)).write_bytes(b"x")
    with (
        pytest.warns(UserWarning, match="is corrupt"),
        pytest.raises(AggMatchError, match=f"All checkpoints in {tmp_path} are corrupt.*{tmp_path.parent} "),
    ):
        load_newest(tmp_path)


def test_checkpoints_that_cannot_be_read_are_not_called_corrupt(tmp_path: Path, monkeypatch):
    save(tmp_path, 1, checkpoint(1)).write_bytes(b"x")
    save(tmp_path, 2, checkpoint(2))

    def refuse(path: Path) -> bytes:
        if "00000002" in path.name:
            raise PermissionError(13, "Permission denied")
        return b"x"

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with (
        pytest.warns(UserWarning, match="is corrupt|cannot be read: Permission denied"),
        pytest.raises(AggMatchError, match=r"Permission denied"),
    ):
        load_newest(tmp_path)


def test_a_full_disk_keeps_the_old_checkpoint_and_leaves_no_partial_file(tmp_path: Path):
    save(tmp_path, 1, checkpoint(1))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(AggMatchError, match=r"Cannot write .*step-00000002.*: File too large"):
            save(tmp_path, 2, checkpoint(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == [path.name for path in found(tmp_path)]
    newest = load_newest(tmp_path)
    assert newest is not None
    assert newest.facts["step"] == 1


def test_partial_files_of_a_killed_process_are_deleted(tmp_path: Path):
    (tmp_path / ".step-00000001-0123456789abcdef.safetensors.xyz").write_bytes(b"half")
    save(tmp_path, 2, checkpoint(2))
    assert len(list(tmp_path.iterdir())) == 1


def test_an_atomic_write_replaces_the_whole_file(tmp_path: Path):
    path = tmp_path / "summary.json"
    path.write_text("old and longer")
    write_atomically(path, b"new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o044, "readable by others, like any other file"


def test_shared_weights_are_stored_twice_and_read_back():
    weight = torch.arange(6.0).view(2, 3)
    packed = unpack(pack(Checkpoint({"a": weight, "b": weight, "c": weight[1:]}, {})))
    assert torch.equal(packed.tensors["a"], packed.tensors["b"])
    assert torch.equal(packed.tensors["c"], weight[1:])
