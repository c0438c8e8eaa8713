"""The cache on disk: what it keeps, what it removes, and what a bad disk costs."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from aggmatch.storage import cache as module
from aggmatch.storage.cache import Cache


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "deep/cache")


def numbers(count: int = 4, start: int = 0) -> dict[str, np.ndarray]:
    return {"numbers": np.arange(start, start + count), "names": np.array(["a", "ü"])}


def used_at(cache: Cache, key: str, seconds: float) -> None:
    os.utime(cache.path(key), (seconds, seconds))


def test_arrays_come_back_by_name_with_their_types(cache):
    assert cache.lookup("a key") is None
    cache.store("a key", {"pixels": np.zeros((2, 3), dtype=np.uint8), "empty": np.zeros((0, 4), dtype=np.float32)})
    found = cache.lookup("a key")
    assert {name: (array.dtype.name, array.shape) for name, array in (found or {}).items()} == {
        "pixels": ("uint8", (2, 3)),
        "empty": ("float32", (0, 4)),
    }
    assert cache.lookup("another key") is None


def test_a_later_entry_replaces_an_earlier_one_and_leaves_no_other_file(cache):
    cache.store("key", numbers())
    cache.store("key", numbers(2, 7))
    assert (cache.lookup("key") or {})["numbers"].tolist() == [7, 8]
    assert [path.name for path in cache.folder.iterdir()] == [cache.path("key").name]


@pytest.mark.parametrize("position", [0, 40, 70, 200, -30, -1])
def test_a_flipped_byte_never_gives_other_numbers(cache, position):
    cache.store("key", numbers(100))
    data = bytearray(cache.path("key").read_bytes())
    data[position] ^= 0x10
    cache.path("key").write_bytes(data)
    found = cache.lookup("key")
    assert found is None or found["numbers"].tolist() == list(range(100))


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04", b"\x93NUMPY\x01\x00"])
def test_a_corrupt_entry_is_removed_and_can_be_written_again(cache, content):
    cache.store("key", numbers())
    cache.path("key").write_bytes(content)
    assert cache.lookup("key") is None
    assert not cache.path("key").exists()
    cache.store("key", numbers())
    assert cache.lookup("key") is not None


def test_pickled_objects_are_not_loaded(cache):
    cache.folder.mkdir(parents=True)
    np.savez(cache.path("key"), objects=np.array([print], dtype=object))
    assert cache.lookup("key") is None


def test_the_least_recently_used_entries_are_removed(cache):
    for key in ("old", "used", "new"):
        cache.store(key, numbers(1000))
    used_at(cache, "old", 1000)
    used_at(cache, "used", 500)
    assert cache.lookup("used") is not None, "which makes it recent"
    size = cache.path("old").stat().st_size
    Cache(cache.folder, limit=3 * size).store("newest", numbers(1000))
    assert [key for key in ("old", "used", "new", "newest") if cache.lookup(key)] == ["used", "new", "newest"]


def test_folders_count_as_entries_with_all_that_is_in_them(tmp_path):
    for name, time in (("old", 100), ("kept", 50), ("new", 200)):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep/file").write_bytes(bytes(1000))
        os.utime(tmp_path / name, (time, time))
    module.keep_newest(tmp_path, 2000, tmp_path / "kept")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "new"]


def test_an_entry_above_the_limit_is_not_written_and_removes_nothing(cache):
    cache.store("small", numbers())
    Cache(cache.folder, limit=1000).store("large", {"zeros": np.zeros(1001, dtype=np.uint8)})
    assert cache.lookup("small") is not None
    assert cache.lookup("large") is None


def test_entries_that_are_being_written_stay_for_a_day(cache):
    cache.store("key", numbers())
    young, old = cache.folder / f".a{module.PART}", cache.folder / f".b{module.PART}"
    for part in (young, old):
        part.write_bytes(bytes(100_000))
    os.utime(old, (1, 1))
    Cache(cache.folder, limit=10_000).store("other", numbers())
    assert young.exists()
    assert not old.exists()


def test_a_disk_that_cannot_be_written_gives_a_warning_that_names_it(tmp_path):
    (tmp_path / "file").touch()
    cache = Cache(tmp_path / "file/below")
    with pytest.warns(UserWarning, match=r"Cannot cache anything in .*file/below: Not a directory.*runtime\.cache_dir"):
        cache.store("key", numbers())
    assert cache.lookup("key") is None


def test_a_full_disk_gives_a_warning_and_leaves_no_part(cache, monkeypatch):
    def full(*_args, **_arrays):
        raise OSError(28, "No space left on device")

    cache.store("old", numbers())
    monkeypatch.setattr(np, "savez", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        cache.store("key", numbers())
    assert [path.name for path in cache.folder.iterdir()] == [cache.path("old").name]


def test_several_writers_of_one_entry_leave_a_whole_one(cache):
    threads = [threading.Thread(target=cache.store, args=("key", numbers(5000, start))) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (found,) = [cache.lookup("key")]
    assert found is not None
    assert found["numbers"].tolist() == list(range(found["numbers"][0], found["numbers"][0] + 5000))
    assert len(list(cache.folder.iterdir())) == 1


def test_a_mapped_array_is_that_of_the_file_and_the_others_are_in_memory(cache):
    cache.store("key", {"large": np.arange(5000, dtype=np.uint8).reshape(50, 100), "small": np.arange(3)})
    found = cache.lookup("key", mapped="large")
    assert isinstance(found["large"], np.memmap)
    assert not isinstance(found["small"], np.memmap)
    assert np.array_equal(found["large"], cache.lookup("key")["large"])
    assert found["small"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("position", [60, 400, 2000])
def test_a_flipped_byte_of_a_mapped_array_is_noticed(cache, position):
    cache.store("key", {"large": np.zeros(4000, dtype=np.uint8)})
    path = cache.path("key")
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    found = cache.lookup("key", mapped="large")
    assert found is None or not found["large"].any()


def test_an_entry_above_the_limit_is_written_if_it_is_meant_to_be_large(tmp_path):
    cache = Cache(tmp_path, limit=100)
    cache.store("key", {"large": np.zeros(101, dtype=np.uint8)}, large=True)
    assert cache.lookup("key") is not None


def test_an_empty_array_can_be_mapped_too(cache):
    cache.store("key", {"large": np.zeros((0, 3), dtype=np.uint8)})
    assert cache.lookup("key", mapped="large")["large"].shape == (0, 3)
