"""Reading a pickle that holds plain values and numpy arrays, and refusing every other one.

A pickle is a program: loading one runs whatever it names. CIFAR is published as pickles of Python 2, which name just
the three things that numpy needs to rebuild an array.
"""

import io
import pickle
import pickletools
from typing import IO, Any

import numpy as np

from aggmatch.errors import AggMatchError


def _dtype(kind: Any, align: Any = False, copy: Any = False) -> np.dtype[Any]:
    # Old pickles say 0 and 1, which numpy 2.4 warns about.
    rebuilt: np.dtype[Any] = np.dtype(kind, align=bool(align), copy=bool(copy))
    return rebuilt


_reconstruct: Any = np.empty(0).__reduce__()[0]  # numpy's own, without its private and movable path

ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
}
"""(module, name) as a pickle spells it → what it gets. Nothing is ever imported on a pickle's behalf."""


NUMBERING = ("PUT", "BINPUT", "LONG_BINPUT")
"""Operations of a pickle that put a value into its table, at a number of their own choice."""


class ArrayUnpickler(pickle.Unpickler):
    """An unpickler for plain values and arrays; `origin` is what errors call the file."""

    def __init__(self, file: IO[bytes], origin: object) -> None:
        # Strings of Python 2 stay bytes: those of an array are its pixels.
        super().__init__(file, encoding="bytes")
        self.origin = origin

    def find_class(self, module: str, name: str, /) -> Any:
        """The allowed object of that name."""
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise AggMatchError(
                f"Refused to read {self.origin}: it asks to run {module}.{name}, so it is not an official file. "
                "Delete it and fetch the official one with --download."
            ) from None


def read_pickle(file: IO[bytes], origin: object) -> Any:
    """The content of a pickle of plain values and arrays. Garbage raises whatever the unpickler stumbles over.

    It is read through before it is run: by one damaged number, the table of its values would take all memory there is.
    """
    content = file.read()
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name in NUMBERING and int(argument or 0) > len(content):
            raise pickle.UnpicklingError(f"it has {len(content)} bytes and numbers a value {argument}")
    return ArrayUnpickler(io.BytesIO(content), origin).load()
