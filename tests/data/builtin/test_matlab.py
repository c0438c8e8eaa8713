"""Arrays of MATLAB files: those that scipy writes are read alike, and corrupt ones are errors."""

import io
import zlib

import numpy as np
import pytest
from scipy.io import savemat

from aggmatch.data.builtin.matlab import read_arrays

LIMIT = 10_000
RNG = np.random.default_rng(0)


def written(content, **options) -> bytes:
    file = io.BytesIO()
    savemat(file, content, **options)
    return file.getvalue()


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", ["f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4, 5), (1, 1), (0, 3)])
def test_arrays_are_read_as_scipy_wrote_them(kind, shape, compressed):
    array = (100 * RNG.random(shape)).astype(kind)
    raw = written({"X": array, "other": "text", "cell": np.array([1, "a"], object)}, do_compression=compressed)
    found = read_arrays(io.BytesIO(raw), ["X"], LIMIT)
    assert found.keys() == {"X"}
    assert found["X"].dtype == array.dtype
    np.testing.assert_array_equal(found["X"], array)


def test_a_small_file_cannot_fill_the_memory():
    raw = written({"X": np.zeros((1000, 1000), np.uint8)}, do_compression=True)
    assert len(raw) < LIMIT
    with pytest.raises(ValueError, match="larger than 10000 bytes"):
        read_arrays(io.BytesIO(raw), ["X"], LIMIT)


HEAD = b"MATLAB 5.0".ljust(124) + b"\x00\x01IM"


def element(kind: int, content: bytes) -> bytes:
    return kind.to_bytes(4, "little") + len(content).to_bytes(4, "little") + content + b"\0" * (-len(content) % 8)


def matrix(sides: list[int], data: bytes, kind: int = 2) -> bytes:
    shape = np.array(sides, "<i4").tobytes()
    return element(14, element(6, b"\x09\0\0\0\0\0\0\0") + element(5, shape) + element(1, b"X") + element(kind, data))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        HEAD[:100],
        HEAD + b"\x0e\0\0",
        HEAD + b"\x0e\0\0\0\xff\xff\xff\xff",
        HEAD + matrix([-1, -1], b"a"),
        HEAD + matrix([2**31 - 1] * 4, b"a"),
        HEAD + matrix([2, 2], b"abc"),
        HEAD + matrix([1], b"a", kind=99),
        HEAD + matrix([1] * 40, b"a"),
        HEAD + matrix([], b""),
        HEAD + element(14, b""),
        HEAD + element(15, b"no zlib"),
        HEAD + element(15, zlib.compress(matrix([1], b"a"))[:-3]),
    ],
)
def test_a_corrupt_file_is_an_error(raw):
    with pytest.raises((ValueError, zlib.error)):
        read_arrays(io.BytesIO(raw), ["X"], LIMIT)
