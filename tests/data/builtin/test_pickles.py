import io
import os
import pickle

import numpy as np
import pytest

from aggmatch.data.builtin import pickles
from aggmatch.data.builtin.pickles import read_pickle
from aggmatch.errors import AggMatchError


class Command:
    """Runs a shell command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_a_python_2_pickle_gives_byte_keys_and_the_same_array(python2_pickle):
    pixels = np.arange(600, dtype=np.uint8).reshape(2, 300)
    raw = python2_pickle({"data": pixels, "labels": [3, 1]})
    assert b"cnumpy.core.multiarray\n_reconstruct" in raw
    content = read_pickle(io.BytesIO(raw), "file")
    assert content.keys() == {b"data", b"labels"}
    assert content[b"labels"] == [3, 1]
    assert content[b"data"].dtype == np.uint8
    np.testing.assert_array_equal(content[b"data"], pixels)


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_a_pickle_of_the_current_numpy_is_read_too(protocol):
    pixels = np.arange(6.0).reshape(2, 3)[:, ::2]  # not contiguous: protocol 5 would name another function otherwise
    content = read_pickle(io.BytesIO(pickle.dumps([pixels], protocol)), "file")
    np.testing.assert_array_equal(content[0], pixels)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_malicious_pickle_fails_and_runs_nothing(tmp_path, protocol):
    witness = tmp_path / "ran"
    raw = pickle.dumps(Command(f"touch {witness}"), protocol)
    with pytest.raises(AggMatchError) as error:
        read_pickle(io.BytesIO(raw), "some/file")
    assert f"Cannot read some/file: it asks to run {os.system.__module__}.system" in str(error.value)
    assert not witness.exists()
    pickle.loads(raw)  # and it would have run
    assert witness.exists()


@pytest.mark.parametrize(
    "name",
    ["builtins eval", "builtins getattr", "numpy load", "numpy.core.multiarray fromfile", "numpy ndarray.tofile"],
)
def test_names_similar_to_the_allowed_ones_fail(name):
    module, attribute = name.split()
    with pytest.raises(AggMatchError, match=f"asks to run {module}.{attribute}"):
        read_pickle(io.BytesIO(f"c{module}\n{attribute}\n.".encode()), "file")


def array_with(shape: object, kind: object, data: object) -> bytes:
    """A pickle of an array with any state, as a corrupt file may hold it."""

    class Any:
        def __reduce__(self):
            return np.empty(0).__reduce__()[0], (np.ndarray, (0,), b"b"), (1, shape, kind, False, data)

    return pickle.dumps(Any(), 3)


@pytest.mark.parametrize(
    ("shape", "kind", "data", "problem"),
    [
        ((2**62, 4), np.dtype("u1"), b"ab", "but 2 bytes"),
        ((-1, -2), np.dtype("u1"), b"ab", "of shape"),
        ([2], np.dtype("u1"), b"ab", "of shape"),
        ((2,), "u1", b"ab", "without a type"),
        ((2,), np.dtype("u1"), "ab", "without a type or bytes"),
        ((1,), np.dtype("O"), b"12345678", "not of numbers"),
        ((1,), np.dtype([("a", "u1")]), b"a", "not of numbers"),
        ((1,), np.dtype("c16"), b"0" * 16, "not of numbers"),
    ],
)
def test_an_array_whose_parts_do_not_fit_is_an_error(shape, kind, data, problem):
    with pytest.raises(pickle.UnpicklingError, match=problem):
        read_pickle(io.BytesIO(array_with(shape, kind, data)), "file")


def test_tuples_within_tuples_do_not_overflow_the_stack():
    nested = b"\x80\x02}(" + b"K\x00" + b"\x85" * 200_000 + b"K\x01u."
    with pytest.raises(pickle.UnpicklingError, match="too many tuples"):
        read_pickle(io.BytesIO(nested), "file")


def test_a_pickle_that_is_too_large_is_not_read(monkeypatch):
    monkeypatch.setattr(pickles, "LARGEST", 100)
    assert read_pickle(io.BytesIO(pickle.dumps(b"a" * 50, 3)), "file") == b"a" * 50
    with pytest.raises(pickle.UnpicklingError, match="more than 100 bytes"):
        read_pickle(io.BytesIO(pickle.dumps(b"a" * 200, 3)), "file")
