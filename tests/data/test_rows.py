"""Rows of images in memory and in files, and memory for new images."""

import gc
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from aggmatch.data import rows
from aggmatch.data.rows import FileRows, MemoryRows, copy_rows, file_behind, keep_rows, new_pixels, rows_of
from aggmatch.errors import AggMatchError

PIXELS = np.random.default_rng(0).integers(0, 256, (50, 3, 4, 4), dtype=np.uint8)
INDEX = np.array([49, 0, 7, 7, 31])


@pytest.fixture
def file(tmp_path) -> Path:
    np.save(tmp_path / "images.npy", PIXELS)
    return tmp_path / "images.npy"


@pytest.fixture
def mapped(file) -> torch.Tensor:
    return rows.as_tensor(np.load(file, mmap_mode="r"))


@pytest.fixture
def no_memory(monkeypatch):
    """As if no image fitted into memory."""
    monkeypatch.setattr(rows, "fits_in_memory", lambda size: False)


def read(source: rows.Rows) -> np.ndarray:
    out = np.zeros((len(INDEX), *PIXELS.shape[1:]), dtype=np.uint8)
    source.read(INDEX, out)
    return out


def test_a_map_is_read_from_its_file_and_other_tensors_from_memory(file, mapped):
    found = rows_of(mapped)
    assert isinstance(found, FileRows)
    assert found.part.path == file
    assert np.array_equal(read(found), PIXELS[INDEX])
    in_memory = rows_of(torch.from_numpy(PIXELS))
    assert isinstance(in_memory, MemoryRows)
    assert np.array_equal(read(in_memory), PIXELS[INDEX])


def test_a_part_of_a_map_is_read_from_its_place_in_the_file(mapped):
    found = rows_of(mapped[10:])
    out = np.zeros((2, 3, 4, 4), dtype=np.uint8)
    found.read(np.array([0, 39]), out)
    assert np.array_equal(out, PIXELS[[10, 49]])


def test_images_with_their_channels_last_in_memory_are_read_too(file):
    stored = torch.from_numpy(np.ascontiguousarray(PIXELS.transpose(0, 2, 3, 1))).permute(0, 3, 1, 2)
    assert np.array_equal(read(rows_of(stored)), PIXELS[INDEX])


def test_a_deleted_or_replaced_file_is_not_taken_for_the_mapped_one(file, mapped):
    file.rename(file.with_name("other.npy"))
    np.save(file, np.zeros_like(PIXELS))
    assert np.array_equal(read(rows_of(mapped)), PIXELS[INDEX])
    file.unlink()
    assert np.array_equal(read(rows_of(mapped)), PIXELS[INDEX])


def test_changes_of_a_private_map_are_not_lost(file):
    private = torch.from_numpy(np.load(file, mmap_mode="c"))
    private[7] = 0
    assert file_behind(private) is None
    assert not read(rows_of(private))[2].any()


def test_a_file_that_becomes_shorter_is_an_error_that_names_it(file, mapped):
    found = rows_of(mapped)
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(AggMatchError, match=r"images\.npy: it has become shorter"):
        read(found)


def test_an_input_error_of_the_disk_is_an_error_that_names_the_file(mapped, monkeypatch):
    def fail(*_):
        raise OSError(5, "Input/output error")

    found = rows_of(mapped)
    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(AggMatchError, match=r"images\.npy: Input/output error"):
        read(found)


def test_reading_continues_if_the_system_gives_a_row_in_pieces(mapped, monkeypatch):
    whole = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, targets, offset: whole(file, [targets[0][:5]], offset))
    assert np.array_equal(read(rows_of(mapped)), PIXELS[INDEX])


def test_the_file_is_closed_with_its_rows(mapped):
    found = rows_of(mapped)
    assert isinstance(found, FileRows)
    descriptor = found.file
    del found
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_new_images_that_do_not_fit_into_memory_are_in_a_file_that_ends_with_them(tmp_path, no_memory):
    pixels = torch.from_numpy(new_pixels(PIXELS.shape, tmp_path))
    pixels.copy_(torch.from_numpy(PIXELS))
    found = file_behind(pixels)
    assert found is not None
    assert found.path.parent == tmp_path
    assert np.array_equal(read(rows_of(pixels)), PIXELS[INDEX])
    part = pixels[3:]
    del pixels
    gc.collect()
    assert list(tmp_path.iterdir()) == [found.path], "a part of them is still in use"
    del part
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_the_file_of_new_images_removes_no_cached_entry(tmp_path, no_memory):
    (tmp_path / "entry.npz").write_bytes(bytes(100))
    os.truncate(tmp_path / "entry.npz", 2**40)  # sparse, and larger than any limit of a cache
    new_pixels(PIXELS.shape, tmp_path)
    assert (tmp_path / "entry.npz").exists()


def test_a_disk_without_room_for_new_images_is_an_error_and_nothing_remains(tmp_path, no_memory, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(AggMatchError, match=r"No space left on device.*runtime\.cache_dir"):
        new_pixels(PIXELS.shape, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("at_once", [1, 4, 1000])
def test_rows_are_copied_and_kept_in_any_number_of_pieces(monkeypatch, at_once):
    monkeypatch.setattr(rows, "AT_ONCE", at_once)
    first, second = torch.from_numpy(PIXELS[:20]), torch.from_numpy(PIXELS[20:])
    assert np.array_equal(copy_rows([first, second], INDEX.tolist()).numpy(), PIXELS[INDEX])
    kept = [row for row in range(50) if row % 3]
    assert np.array_equal(keep_rows(PIXELS.copy(), kept), PIXELS[kept])
