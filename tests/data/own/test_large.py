"""Images of your own that do not fit into memory, or that fit into it only once."""

import gc
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from tests.data.photos import paint

from aggmatch.data import rows
from aggmatch.data.own import pixels
from aggmatch.data.own.images import read_own_images
from aggmatch.data.rows import file_behind


@pytest.fixture
def no_memory(monkeypatch):
    """As if no image fitted into memory."""

    def patch() -> None:
        for module in (rows, pixels):
            monkeypatch.setattr(module, "fits_in_memory", lambda size: False)

    return patch


@pytest.fixture
def photos(tmp_path) -> Path:
    for name, shade in (("cat", 50), ("dog", 200)):
        for number in range(5):
            paint(tmp_path / "photos" / name / f"{number}.png", (shade, number, 0))
    (tmp_path / "photos/cat/broken.png").write_bytes(b"no image")
    return tmp_path / "photos"


@pytest.fixture
def arrays(tmp_path) -> Path:
    images = np.random.default_rng(0).integers(0, 256, (2500, 64, 64, 3), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", images=images, labels=np.arange(2500) % 2)
    return tmp_path / "data.npz"


@pytest.mark.filterwarnings("ignore:1 of 11 files cannot be read")
def test_a_folder_that_does_not_fit_into_memory_is_read_into_files_once(photos, tmp_path, no_memory):
    wanted = read_own_images(photos, 32, 0.2, cache_dir=str(tmp_path / "other"))
    no_memory()
    for _ in range(2):  # decoded, then found in the cache
        data = read_own_images(photos, 32, 0.2, cache_dir=str(tmp_path / "cache"))
        assert file_behind(data.train.pixels) is not None
        assert (data.fingerprint, data.test_fingerprint) == (wanted.fingerprint, wanted.test_fingerprint)
        assert data.train.names == wanted.train.names
    del data
    gc.collect()
    assert len([path for path in (tmp_path / "cache").rglob("*") if path.is_file()]) == 1, "the decoded images"


def test_arrays_that_do_not_fit_into_memory_are_read_into_a_file(arrays, tmp_path, no_memory):
    wanted = read_own_images(arrays, 64, 0.2)
    no_memory()
    data = read_own_images(arrays, 64, 0.2, cache_dir=str(tmp_path / "cache"))
    found = file_behind(data.train.pixels)
    assert found is not None
    assert found.path.is_relative_to(tmp_path / "cache")
    assert (data.fingerprint, data.test_fingerprint) == (wanted.fingerprint, wanted.test_fingerprint)


@pytest.mark.parametrize("side", [64, 32])
def test_arrays_are_in_memory_only_once_while_they_are_read(arrays, side):
    tracemalloc.start()
    try:
        data = read_own_images(arrays, side, 0.2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    size = data.train.pixels.nbytes + data.test.pixels.nbytes
    some = rows.AT_ONCE * 64 * 64 * 3
    assert peak < 1.3 * size + 2.5 * some


def test_arrays_with_their_columns_first_give_the_same_images(arrays, tmp_path):
    stored = np.load(arrays)
    np.savez(tmp_path / "columns.npz", images=np.asfortranarray(stored["images"]), labels=stored["labels"])
    columns = read_own_images(tmp_path / "columns.npz", 64, 0.2)
    assert columns.fingerprint == read_own_images(arrays, 64, 0.2).fingerprint
