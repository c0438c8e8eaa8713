"""Arrays of numbers from MATLAB files of version 5.

Written for the files of SVHN and for nothing else: every size is checked before it is used, so that a corrupt file is
an error and cannot crash the process or fill its memory.
"""

import io
import math
import zlib
from collections.abc import Collection, Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

HEADER = 128
"""Bytes before the first element."""
COMPRESSED, MATRIX = 15, 14
STORED = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
"""Type of an element → type of its numbers."""
CLASSES = dict(enumerate(("f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"), 6))
"""Class of an array → type of its numbers; a file may store them in a smaller type."""
DIMENSIONS = 32


def read_arrays(file: IO[bytes], names: Collection[str], limit: int) -> dict[str, NDArray[Any]]:
    """Return the arrays with these names that the file has.

    limit: bytes that one array may have. Raises a ValueError for anything that is not a valid file.
    """
    header = file.read(HEADER)
    if len(header) < HEADER or header[124:] != b"\x00\x01IM":
        raise ValueError("it is not a MATLAB file of version 5")
    found: dict[str, NDArray[Any]] = {}
    for kind, content in elements(file, padded=False):
        if kind == COMPRESSED:
            kind, content = next(elements(io.BytesIO(inflate(content, limit)), padded=True), (0, b""))
        if kind == MATRIX and len(content) <= limit + 4096:
            name, array = read_matrix(content, names)
            if array is not None:
                found[name] = array
    return found


def elements(file: IO[bytes], *, padded: bool) -> Iterator[tuple[int, bytes]]:
    """Yield type and content of each element; padded: whether each starts at a multiple of eight bytes."""
    while tag := file.read(8):
        if len(tag) < 8:
            raise ValueError("an element has no complete head")
        kind, size = int.from_bytes(tag[:4], "little"), int.from_bytes(tag[4:], "little")
        if kind >> 16:  # a small element has its content in its head
            kind, size = kind & 0xFFFF, kind >> 16
            if size > 4:
                raise ValueError("a small element is too large")
            yield kind, tag[4 : 4 + size]
            continue
        content = file.read(size)
        if len(content) < size:
            raise ValueError(f"an element of {size} bytes has only {len(content)}")
        if padded or kind != COMPRESSED:
            file.read(-size % 8)
        yield kind, content


def inflate(content: bytes, limit: int) -> bytes:
    """Return the decompressed content; more than `limit` bytes, without its head, are an error."""
    reader = zlib.decompressobj()
    data = reader.decompress(content, limit + 4096)
    if not reader.eof:
        raise ValueError(f"an array is cut short or larger than {limit} bytes")
    return data


def read_matrix(content: bytes, names: Collection[str]) -> tuple[str, NDArray[Any] | None]:
    """Return the name of a matrix, and its numbers if the name is one of `names`."""
    parts = list(elements(io.BytesIO(content), padded=True))
    if len(parts) < 4:
        raise ValueError("an array lacks its class, shape, name or numbers")
    (_, flags), (_, sides), (_, letters), (kind, data), *_ = parts
    name = letters.decode("ascii", errors="replace")
    if name not in names:
        return name, None
    wanted = CLASSES.get(flags[0] if flags else 0)
    if wanted is None:
        raise ValueError(f"{name} is not an array of numbers")
    shape = tuple(np.frombuffer(sides[: len(sides) // 4 * 4], "<i4").tolist())
    if kind not in STORED or not 1 <= len(shape) <= DIMENSIONS or min(shape) < 0:
        raise ValueError(f"{name} has no valid type or shape")
    stored = np.dtype(STORED[kind])
    if math.prod(shape) * stored.itemsize != len(data):
        raise ValueError(f"{name} has the shape {shape} but {len(data)} bytes")
    return name, np.frombuffer(data, stored).reshape(shape, order="F").astype(wanted, copy=False)
