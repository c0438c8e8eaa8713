"""Safe reading of pickles: plain values and numpy arrays only.

A pickle is a program: loading it runs the functions it names, with the arguments it chooses. CIFAR is published as
pickles of Python 2, which name only the three objects that numpy needs to rebuild an array. These names stand for the
classes below, so a pickle never reaches numpy: corrupt arguments would crash it.
"""

import io
import math
import pickle
import pickletools
import re
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from aggmatch.errors import AggMatchError

KIND = re.compile(r"[<>|=]?[biuf][1248]")
"""Types of arrays that are read: numbers and booleans of a fixed size."""
NUMBERING = ("PUT", "BINPUT", "LONG_BINPUT")
"""Operations of a pickle that store a value in its table, at an index that the pickle chooses."""
LARGEST = 1 << 28
"""Most bytes of a pickle; the largest official one has 155 million."""
NESTING = 1000
"""Most operations of a pickle that build tuples: a corrupt one nests them until the stack overflows."""


class StoredType:
    """The type of a stored array, such as `u1`."""

    def __init__(self, kind: Any, *_: Any) -> None:
        self.kind = kind.decode("ascii") if isinstance(kind, bytes) else kind
        if not isinstance(self.kind, str) or not KIND.fullmatch(self.kind):
            raise pickle.UnpicklingError(f"it holds an array of {self.kind!r:.40}, not of numbers")

    def __setstate__(self, state: Any) -> None:
        """Note the order of bytes; the rest of the state is about types of several parts."""
        order = state[1]
        order = order.decode("ascii") if isinstance(order, bytes) else order
        if order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"it holds an array with the byte order {order!r:.40}")
        self.kind = order + self.kind.lstrip("<>|=")


class StoredArray:
    """An array in a pickle. It becomes a numpy array after everything is checked."""

    def __init__(self, *_: Any) -> None:
        self.array: NDArray[Any] = np.empty(0)

    def __setstate__(self, state: Any) -> None:
        """Take shape, type, order and bytes, as numpy stores them."""
        _, shape, kind, fortran, data = state
        if not isinstance(shape, tuple) or not all(type(side) is int and side >= 0 for side in shape):
            raise pickle.UnpicklingError(f"it holds an array of shape {shape!r:.40}")
        if not isinstance(kind, StoredType) or not isinstance(data, bytes):
            raise pickle.UnpicklingError("it holds an array without a type or bytes")
        dtype = np.dtype(kind.kind)
        if math.prod(shape) * dtype.itemsize != len(data):
            raise pickle.UnpicklingError(f"it holds an array of shape {shape} but {len(data)} bytes")
        self.array = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


ALLOWED: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): StoredArray,
    ("numpy._core.multiarray", "_reconstruct"): StoredArray,
    ("numpy", "ndarray"): StoredArray,
    ("numpy", "dtype"): StoredType,
}
"""(module, name) in a pickle → the class it stands for. A pickle never causes an import."""


class ArrayUnpickler(pickle.Unpickler):
    """An unpickler for plain values and arrays; `origin` names the file in errors."""

    def __init__(self, file: IO[bytes], origin: object) -> None:
        # Strings of Python 2 stay bytes: the string of an array holds its pixels.
        super().__init__(file, encoding="bytes")
        self.origin = origin

    def find_class(self, module: str, name: str, /) -> Any:
        """Return the allowed class of that name."""
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise AggMatchError(
                f"Cannot read {self.origin}: it asks to run {module}.{name}, so it is not an official file. "
                "Delete it and download the official one.",
                options="--download",
            ) from None


def read_pickle(file: IO[bytes], origin: object) -> Any:
    """Return the content of a pickle of plain values and arrays. Invalid content raises any exception of the unpickler.

    Arrays may be the content itself, or an item of its list or dictionary. A first pass checks the operations: a
    corrupt index of the table would fill the memory, and tuples in tuples would overflow the stack.
    """
    content, tuples = file.read(LARGEST + 1), 0
    if len(content) > LARGEST:
        raise pickle.UnpicklingError(f"it has more than {LARGEST:,} bytes")
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name in NUMBERING and int(argument or 0) > len(content):
            raise pickle.UnpicklingError(f"it has {len(content)} bytes but stores a value at index {argument}")
        tuples += opcode.name.startswith(("TUPLE", "FROZENSET", "REDUCE"))
        if tuples > NESTING:
            raise pickle.UnpicklingError("it holds too many tuples")
    return with_arrays(ArrayUnpickler(io.BytesIO(content), origin).load())


def with_arrays(value: Any) -> Any:
    """Return the value with numpy arrays in place of stored ones."""
    if isinstance(value, StoredArray):
        return value.array
    if isinstance(value, list):
        return [part.array if isinstance(part, StoredArray) else part for part in value]
    if isinstance(value, dict):
        return {key: part.array if isinstance(part, StoredArray) else part for key, part in value.items()}
    return value
