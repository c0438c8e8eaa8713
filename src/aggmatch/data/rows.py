"""Reads images by number, from memory or from a file, and provides memory for new ones, or a file if they do not fit.

A tensor of images may be a map of a file (`np.memmap`). Its rows are then read from the file itself: an I/O error in a
map would end the process, and a read of a file gives an error with a reason.
"""

import os
import sys
import tempfile
import warnings
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aggmatch.devices import free_memory
from aggmatch.errors import AggMatchError
from aggmatch.storage.cache import PART, keep_newest
from aggmatch.storage.files import cache_folder

SHARE = 0.5
"""Images may take at most this share of the free memory of a device or of the host; the rest is for training."""
READERS = 8
"""Threads that read rows of a file. A disk answers many requests at once, and each thread waits for one."""
AT_ONCE = 1024
"""Images that are copied at a time."""
READ_ONLY = "The given NumPy array is not writable"
"""Start of a warning of torch about maps of files, to which nobody writes."""


class Rows(Protocol):
    """N images, of which any can be read by number. Several threads may read at the same time."""

    shape: tuple[int, ...]
    """(N, channels, height, width)."""
    readers: int
    """Number of threads that are worth using."""

    def read(self, index: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Copy the images with these numbers, (n,), to `out`, (n, channels, height, width)."""


class MemoryRows:
    """Images in memory."""

    readers = 1

    def __init__(self, pixels: Tensor) -> None:
        self.shape, self.array = tuple(pixels.shape), pixels.cpu().numpy()

    def read(self, index: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Copy rows; other threads run meanwhile."""
        if self.array.flags.c_contiguous:
            np.take(self.array, index, axis=0, out=out, mode="clip")  # other modes copy twice
        else:  # `take` would first copy the whole array
            out[...] = self.array[index]


class FilePart(NamedTuple):
    """Where an array begins in a file."""

    path: Path
    offset: int


class FileRows:
    """Images in a file, one after the other.

    part: where the first one begins. shape: (N, channels, height, width). Raises an `AggMatchError` if the file cannot
    be opened, and in `read` if it cannot be read or has become shorter.
    """

    readers = READERS

    def __init__(self, part: FilePart, shape: tuple[int, ...]) -> None:
        self.part, self.shape = part, shape
        self.size = int(np.prod(shape[1:]))
        try:
            self.file = os.open(part.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise unreadable(part.path, error.strerror) from error
        weakref.finalize(self, os.close, self.file)

    def read(self, index: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Read rows; other threads run meanwhile."""
        target = out.reshape(-1).data
        for place, row in enumerate(index.tolist()):
            self.read_one(self.part.offset + row * self.size, target[place * self.size : (place + 1) * self.size])

    def read_one(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes at this offset; the system may give them in several pieces."""
        while target:
            try:
                found = os.preadv(self.file, [target], offset)
            except OSError as error:
                raise unreadable(self.part.path, error.strerror) from error
            if not found:
                raise unreadable(self.part.path, "it has become shorter")
            target, offset = target[found:], offset + found


def unreadable(path: Path, reason: str | None) -> AggMatchError:
    """Return the error for a file of images that cannot be read while a run uses it."""
    return AggMatchError(f"Cannot read images from {path}: {reason}. Check the disk, then resume the run.")


def rows_of(pixels: Tensor) -> Rows:
    """Return the rows of a tensor: those of its file, if it is a map of one."""
    part = file_behind(pixels)
    return MemoryRows(pixels) if part is None else FileRows(part, tuple(pixels.shape))


def file_behind(pixels: Tensor) -> FilePart | None:
    """Return the file that a contiguous tensor is a map of; None if it is in memory.

    The system tells which file is mapped at an address. Only Linux does; elsewhere every tensor counts as in memory.

    Example: `file_behind(torch.from_numpy(np.load("images.npy", mmap_mode="r")))` has the offset 128.
    """
    if pixels.device.type != "cpu" or not pixels.is_contiguous() or not pixels.numel():
        return None
    address = pixels.data_ptr()
    with suppress(OSError), Path("/proc/self/maps").open(encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            span, access, begin, _, inode, *path = line.split(maxsplit=5)
            first, last = (int(end, 16) for end in span.split("-"))
            if not first <= address < last:
                continue
            own_changes = access[1] == "w" and access[3] == "p"  # of a private map, which the file does not have
            if inode == "0" or not path or own_changes or address + pixels.nbytes > last:
                return None
            file = Path(path[0].rstrip("\n"))
            same = file.is_file() and file.stat().st_ino == int(inode)  # not deleted or replaced since
            return FilePart(file, int(begin, 16) + address - first) if same else None
    return None


# Memory for new images ------------------------------------------------------------------------------------------------


def fits_in_memory(size: int) -> bool:
    """Whether this number of bytes is at most half of the memory that this process may still take."""
    return size <= SHARE * free_memory(torch.device("cpu"))


def new_pixels(shape: tuple[int, ...], folder: Path | None = None) -> NDArray[np.uint8]:
    """Return an array for new images: in memory if it fits there, else a map of a file that ends with the array.

    folder: where the file is; without it, in the user's cache folder. Raises an `AggMatchError` if there is no room.

    Example: `new_pixels((1000, 3, 32, 32))[0] = image`.
    """
    size = int(np.prod(shape))
    if not size or fits_in_memory(size):
        return np.empty(shape, dtype=np.uint8)
    folder = folder or pixel_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(PART, ".images.", folder)
        part = Path(name)
        try:
            with os.fdopen(descriptor, "r+b") as file:
                if hasattr(os, "posix_fallocate"):  # a full disk is an error now, not a crash later
                    os.posix_fallocate(file.fileno(), 0, size)
                array = np.memmap(file, dtype=np.uint8, mode="r+", shape=shape)
        except BaseException:
            part.unlink()
            raise
    except OSError as error:
        raise not_stored(folder, size, error) from None
    weakref.finalize(array, part.unlink, missing_ok=True)
    keep_newest(folder, sys.maxsize, part)  # removes only what a killed process left
    return array


def copy_rows(parts: Sequence[Tensor], rows: Sequence[int], folder: Path | None = None) -> Tensor:
    """Return some of the images of several tensors, counted through all of them; see `new_pixels` for the memory.

    Example: `copy_rows([train, test], [0, len(train)])` is the first image of each.
    """
    copied = torch.from_numpy(new_pixels((len(rows), *parts[0].shape[1:]), folder))
    index, first = torch.tensor(rows, dtype=torch.int64), 0
    for part in parts:
        here = ((index >= first) & (index < first + len(part))).nonzero().view(-1)
        for some in here.split(AT_ONCE):
            copied[some] = part[index[some] - first]
        first += len(part)
    return copied


def keep_rows(pixels: NDArray[np.uint8], rows: Sequence[int]) -> NDArray[np.uint8]:
    """Move some images, given by ascending numbers, to the front of an array, and return that part of it.

    A copy would take the memory of all images twice.
    """
    for first in range(0, len(rows), AT_ONCE):
        some = rows[first : first + AT_ONCE]
        pixels[first : first + len(some)] = pixels[some]
    return pixels[: len(rows)]


def as_tensor(pixels: NDArray[np.uint8]) -> Tensor:
    """Return an array as a tensor, without a warning if it is a map of a file that is only read."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", READ_ONLY)
        return torch.from_numpy(pixels)


def pixel_folder(cache_dir: str | None = None) -> Path:
    """Return the folder of images that are kept on disk instead of in memory; see `files.cache_folder`."""
    return cache_folder(cache_dir) / "pixels"


def not_stored(folder: Path, size: int, error: OSError) -> AggMatchError:
    """Return the error for images that are too large for memory and cannot be written to disk either."""
    return AggMatchError(
        f"Cannot keep {size / 1e9:,.1f} GB of images in {folder}: {error.strerror}. Free some space there, or use "
        f"another folder: runtime.cache_dir",
        options="--set runtime.cache_dir=FOLDER",
    )
