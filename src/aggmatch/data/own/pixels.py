"""Many image files as pixels: decoded in parallel, once. Later commands find the pixels in the cache.

The cache has one entry for each folder and size. A file whose path, size and time of change are known is not even
opened; a file that was renamed or copied is found by its content. So labelling images by moving them costs nothing.
"""

import hashlib
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import PIL
import torch
from numpy.typing import NDArray
from torch import Tensor

from aggmatch.data.own.decode import DECODER, Budget, decode_stream, open_regular, printable, reason
from aggmatch.data.rows import as_tensor, fits_in_memory, keep_rows, new_pixels
from aggmatch.progress import Progress, following
from aggmatch.storage.cache import Cache
from aggmatch.tables import plural, some_of

FRESH = 2 * 10**9
"""Nanoseconds after a change during which a file may change again without a new time: it is compared by content."""
DIGEST = 16
"""Bytes of the digests of paths and contents."""

LISTED = 20
"""Files that a warning about unreadable files names; it counts the others."""


class Stamp(NamedTuple):
    """What is known about a file without opening it."""

    path: bytes
    """Digest of its path relative to the folder."""
    size: int
    changed: int
    """Time of the last change in nanoseconds; 0 if that is too short ago to be sure."""


@dataclass(frozen=True)
class Decoded:
    """Pixels of N files, and by what to recognise these files."""

    stamps: list[Stamp]
    contents: list[bytes]
    """Digest of the content of each file."""
    pixels: NDArray[np.uint8]
    """(N, channels, side, side)."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that the cache holds."""
        return {
            "paths": digests([stamp.path for stamp in self.stamps]),
            "stats": np.array([stamp[1:] for stamp in self.stamps], dtype=np.int64),
            "contents": digests(self.contents),
            "pixels": self.pixels,
        }

    @classmethod
    def of(cls, arrays: dict[str, NDArray[Any]], shape: tuple[int, ...]) -> "Decoded":
        """Return what the cache held; raise ValueError or KeyError if it is something else."""
        paths, stats, contents, pixels = (arrays[name] for name in ("paths", "stats", "contents", "pixels"))
        if pixels.dtype != np.uint8 or pixels.shape[1:] != shape or not len(paths) == len(contents) == len(pixels):
            raise ValueError("another content")
        known = zip(paths, stats.tolist(), strict=True)
        stamps = [Stamp(path.tobytes(), size, changed) for path, (size, changed) in known]
        return cls(stamps, [content.tobytes() for content in contents], pixels)


def digests(values: Sequence[bytes]) -> NDArray[np.uint8]:
    """Return digests as an array, (N, 16)."""
    return np.frombuffer(b"".join(values), dtype=np.uint8).reshape(-1, DIGEST)


def decode_all(
    files: Sequence[Path],
    side: int,
    channels: int,
    *,
    root: Path | None = None,
    cache: Cache | None = None,
    progress: Progress | None = None,
) -> tuple[Tensor, list[int]]:
    """Return the readable images, (N, channels, side, side), and their positions; a warning names unreadable files.

    root, cache: the folder that all files are in, and where their pixels are cached; without them all are decoded.
    progress: progress callback, takes the images so far and in all; without it, a terminal shows a progress bar.

    Example: `pixels, kept = decode_all([Path("a.jpg"), Path("b.png")], side=32, channels=3)`.
    """
    shape, place = (channels, side, side), root or Path()
    key = f"{place.resolve()} side {side} channels {channels} decoder {DECODER} Pillow {PIL.__version__}"
    old = lookup(cache, key, shape)
    stamps = [stamp_of(file, place) for file in files]
    rows = {stamp: row for row, stamp in enumerate(old.stamps) if stamp.changed}
    known = [rows.get(stamp, -1) for stamp in stamps]
    if known == list(range(len(old.pixels))):
        found = np.array(old.pixels) if fits_in_memory(old.pixels.nbytes) else old.pixels
        return as_tensor(found), list(range(len(files)))
    pixels = new_pixels((len(files), *shape), cache.folder if cache else None)
    contents, problems = read_files(files, pixels, old, known, progress, with_digests=cache is not None)
    warn_unreadable(files, problems)
    good = [position for position in range(len(files)) if position not in problems]
    if problems:
        pixels = keep_rows(pixels, good)
    if cache and (len(good) != len(old.pixels) or any(known[position] < 0 for position in good)):
        new = Decoded([stamps[position] for position in good], [contents[position] for position in good], pixels)
        cache.store(key, new.arrays(), large=isinstance(pixels, np.memmap))
    return torch.from_numpy(pixels), good


def decode_in_turn(files: Sequence[Path], side: int, channels: int, batch: int) -> Iterator[tuple[list[Path], Tensor]]:
    """Yield readable files with their images, at most `batch` at a time; one warning at the end names all others.

    Example: `for files, pixels in decode_in_turn(photos, side=32, channels=3, batch=100): ...`.
    """
    shape, problems = (channels, side, side), dict[int, str]()
    for first in range(0, len(files), batch):
        some = files[first : first + batch]
        pixels = new_pixels((len(some), *shape), None)
        _, bad = read_files(some, pixels, nothing(shape), [-1] * len(some), lambda *_: None, with_digests=False)
        problems |= {first + position: why for position, why in bad.items()}
        good = [position for position in range(len(some)) if position not in bad]
        yield [some[position] for position in good], torch.from_numpy(keep_rows(pixels, good))
    warn_unreadable(files, problems)


def nothing(shape: tuple[int, ...]) -> Decoded:
    """Return what a cache holds before the first image of this shape."""
    return Decoded([], [], np.empty((0, *shape), dtype=np.uint8))


def lookup(cache: Cache | None, key: str, shape: tuple[int, ...]) -> Decoded:
    """Return what the cache holds; nothing if that is missing or something else."""
    try:
        if cache and (arrays := cache.lookup(key, mapped="pixels")) is not None:
            return Decoded.of(arrays, shape)
    except (ValueError, KeyError, TypeError):  # somebody else wrote the entry
        pass
    return nothing(shape)


def stamp_of(file: Path, root: Path) -> Stamp:
    """Return path, size and time of change of a file."""
    path = hashlib.blake2b(os.fsencode(os.path.relpath(file, root)), digest_size=DIGEST).digest()
    try:
        status = file.stat()
    except OSError:  # an unreadable file, which is reported when it is opened
        return Stamp(path, 0, 0)
    settled = time.time_ns() - status.st_mtime_ns > FRESH
    return Stamp(path, status.st_size, status.st_mtime_ns if settled else 0)


def read_files(
    files: Sequence[Path],
    pixels: NDArray[np.uint8],
    old: Decoded,
    known: Sequence[int],
    progress: Progress | None,
    *,
    with_digests: bool,
) -> tuple[list[bytes], dict[int, str]]:
    """Fill `pixels`, one row per file; return the digests of contents, and position → reason of unreadable files.

    known: for each file its row in `old`, or −1: then it is looked up by its content, or else decoded.
    """
    by_content = {content: row for row, content in enumerate(old.contents)}
    contents, problems, budget = [bytes(DIGEST)] * len(files), dict[int, str](), Budget()
    _, channels, side, _ = pixels.shape

    def read(position: int) -> None:
        row = known[position]
        try:
            if row < 0:
                with open_regular(files[position]) as stream:
                    if with_digests:
                        contents[position] = content_digest(stream)
                        row = by_content.get(contents[position], -1)
                    if row < 0:
                        pixels[position] = decode_stream(stream, side, channels, budget).numpy()
            if row >= 0:
                pixels[position], contents[position] = old.pixels[row], old.contents[row]
        except Exception as error:  # Pillow raises almost any exception for a corrupt file
            problems[position] = reason(error)

    with warnings.catch_warnings(), ThreadPoolExecutor() as pool, following(progress, "Reading", "images") as report:
        # Pillow warns about unusual but readable files. Ignored here and not in `read`: threads share the filters.
        warnings.simplefilter("ignore")
        for done, _ in enumerate(pool.map(read, range(len(files))), 1):
            report(done, len(files))
    return contents, problems


def content_digest(stream: BufferedReader) -> bytes:
    """Return the digest of an open file, which is at its start again afterwards."""
    digest = hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=DIGEST)).digest()
    stream.seek(0)
    return digest


def warn_unreadable(files: Sequence[Path], problems: dict[int, str]) -> None:
    """Warn about files that cannot be read: by name, with the reason, so that they can be repaired or deleted."""
    if problems:
        bad = [f"{printable(files[position])} ({problems[position]})" for position in sorted(problems)]
        count, verb = f"{len(bad)} of {plural(len(files), 'file')}", "is" if len(bad) == 1 else "are"
        warnings.warn(f"{count} cannot be read and {verb} left out: {some_of(bad, LISTED)}.", stacklevel=3)
