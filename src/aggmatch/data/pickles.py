"""Safe reading of pickles: plain values and numpy arrays only.

A pickle is a program: loading it runs the functions it names. CIFAR is published as pickles of Python 2, which name
only the three objects that numpy needs to rebuild an array.
"""

import io
import pickle
import pickletools
from typing import IO, Any

import numpy as np

from aggmatch.errors import AggMatchError


def _dtype(kind: Any, align: Any = False, copy: Any = False) -> np.dtype[Any]:
    # Old pickles hold 0 and 1 instead of booleans, which numpy 2.4 warns about.
    rebuilt: np.dtype[Any] = np.dtype(kind, align=bool(align), copy=bool(copy))
    return rebuilt


_reconstruct: Any = np.empty(0).__reduce__()[0]  # numpy's private function, whose path differs between releases

ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
}
"""(module, name) in a pickle → the object it stands for. A pickle never causes an import."""

NUMBERING = ("PUT", "BINPUT", "LONG_BINPUT")
"""Operations of a pickle that store a value in its table, at an index that the pickle chooses."""


class ArrayUnpickler(pickle.Unpickler):
    """An unpickler for plain values and arrays; `origin` names the file in errors."""

    def __init__(self, file: IO[bytes], origin: object) -> None:
        # Strings of Python 2 stay bytes: the string of an array holds its pixels.
        super().__init__(file, encoding="bytes")
        self.origin = origin

    def find_class(self, module: str, name: str, /) -> Any:
        """Return the allowed object of that name."""
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

    A first pass checks the indices of its table: one corrupt index would make the table fill the memory.
    """
    content = file.read()
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name in NUMBERING and int(argument or 0) > len(content):
            raise pickle.UnpicklingError(f"it has {len(content)} bytes but stores a value at index {argument}")
    return ArrayUnpickler(io.BytesIO(content), origin).load()
