import gzip
from pathlib import Path

import numpy as np
import pytest

from aggmatch.data import load
from aggmatch.data.builtin.mnist import FASHION_FILES, MNIST_FILES
from aggmatch.errors import AggMatchError


def idx(values: np.ndarray) -> bytes:
    """An idx file of unsigned bytes."""
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + values.astype(np.uint8).tobytes()


@pytest.fixture
def arrays() -> list[np.ndarray]:
    """Training images and labels, test images and labels."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (20, 28, 28)), np.arange(20) % 10, rng.integers(0, 256, (10, 28, 28)), np.arange(10)]


@pytest.fixture
def folder(tmp_path, arrays) -> Path:
    for archives in (MNIST_FILES, FASHION_FILES):
        for archive, values in zip(archives, arrays, strict=True):
            (tmp_path / archive.file).parent.mkdir(exist_ok=True)
            (tmp_path / archive.file).write_bytes(gzip.compress(idx(values)))
    return tmp_path


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_official_files_are_read_packed_and_unpacked(name, folder, arrays):
    packed = load(name, folder)
    assert packed.train.pixels.shape == (20, 1, 28, 28)
    assert np.array_equal(packed.train.pixels[:, 0].numpy(), arrays[0])
    assert packed.test.labels.tolist() == list(range(10))
    for path in (folder / name).glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert load(name, folder).fingerprint == packed.fingerprint


def test_a_missing_file_is_named(folder):
    (folder / MNIST_FILES[1].file).unlink()
    with pytest.raises(AggMatchError, match=r"mnist/train-labels-idx1-ubyte\.gz"):
        load("mnist", folder)


@pytest.mark.parametrize(
    ("number", "content"),
    [
        (0, b""),
        (0, idx(np.zeros((20, 28, 28)))[:-1]),
        (0, idx(np.zeros((20, 28, 28))) + b"x"),
        (0, idx(np.zeros((20, 28, 27)))),
        (0, idx(np.zeros(20))),
        (0, b"\0\0\x08\x03" + b"\xff" * 12),
        (1, idx(np.zeros(19))),
        (1, idx(np.full(20, 10))),
        (1, b"\0\0\x0d\x01" + idx(np.zeros(20))[4:]),
    ],
)
def test_a_corrupt_file_is_named(folder, number, content):
    archive = MNIST_FILES[number]
    (folder / archive.file).write_bytes(gzip.compress(content))
    with pytest.raises(AggMatchError, match=archive.file.replace(".", r"\.")):
        load("mnist", folder)


def test_a_truncated_gzip_file_is_named(folder):
    path = folder / MNIST_FILES[0].file
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(AggMatchError, match="train-images"):
        load("mnist", folder)
