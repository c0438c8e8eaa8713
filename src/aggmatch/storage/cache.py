"""A cache on disk: named arrays under a key, the oldest removed when their total size exceeds a limit.

A cache only saves time. An entry that is missing or corrupt is computed again, and a disk that cannot be written costs
the saved time and a warning, never the result.
"""

import hashlib
import os
import shutil
import tempfile
import time
import warnings
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

LIMIT = 8 * 2**30
"""Bytes that the entries of one cache may take together."""
ABANDONED = 24 * 3600.0
"""Seconds after which a partly written entry belongs to a process that is gone."""
PART = ".part"
"""End of the name of an entry that is being written."""
CHUNK = 2**20
LOCAL_HEAD = 30
"""Bytes before the name of a member of a .zip file; its last four are the lengths of name and extra field."""


@dataclass(frozen=True)
class Cache:
    """Named arrays by key, in one file per key.

    folder: where the files are; it is created with the first entry. limit: bytes of all entries together; storing
    removes the least recently used ones. Several processes may share the folder: an entry is replaced as a whole, and
    if two write the same one, the last wins.

    Example: `cache.lookup("weights 3")`, and if that is None, `cache.store("weights 3", {"features": features})`.
    """

    folder: Path
    limit: int = LIMIT

    def path(self, key: str) -> Path:
        """Return the file of a key, which can be any text: what the arrays depend on."""
        digest = hashlib.blake2b(key.encode(errors="surrogateescape"), digest_size=20).hexdigest()
        return self.folder / f"{digest}.npz"

    def lookup(self, key: str, mapped: str = "") -> dict[str, NDArray[Any]] | None:
        """Return the arrays of a key by name; None if they are not there. A corrupt entry is removed.

        mapped: the name of an array that is not read into memory: it is a read-only map of the file.
        """
        path = self.path(key)
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                # All bytes are read, so that every checksum is verified.
                found = {name: arrays[name] for name in arrays.files if name != mapped}
                if mapped in arrays.files:
                    found[mapped] = map_member(file, arrays.zip, f"{mapped}.npy")
        except OSError:  # not there, or not readable
            return None
        except Exception:  # corrupt files raise almost any exception
            remove(path)
            return None
        mark_used(path)
        return found

    def store(self, key: str, arrays: Mapping[str, NDArray[Any]], *, large: bool = False) -> bool:
        """Write the arrays of a key, and return whether they are written.

        If that fails, warn; arrays larger than the limit are only written if `large`.
        """
        if sum(array.nbytes for array in arrays.values()) > self.limit and not large:
            return False
        try:
            self.write(key, arrays)
        except OSError as error:
            warn_not_stored(self.folder, error)
            return False
        return True

    def write(self, key: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write the arrays of a key, of any size and in small pieces; raise OSError if that fails."""
        path = self.path(key)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor, part = tempfile.mkstemp(PART, f".{path.stem}.", self.folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    np.savez(file, **arrays)  # type: ignore[arg-type]
                Path(part).replace(path)
            finally:
                Path(part).unlink(missing_ok=True)
        finally:
            keep_newest(self.folder, self.limit, path)


def map_member(file: BinaryIO, archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """Return an array of an open .npz file, which `np.savez` wrote without compression, as a map of the file.

    Raises `zipfile.BadZipFile` if its checksum is wrong.
    """
    info = archive.getinfo(name)
    with archive.open(info) as member:
        while member.read(CHUNK):  # the end verifies the checksum
            pass
    file.seek(info.header_offset)
    head = file.read(LOCAL_HEAD)
    file.seek(int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little"), os.SEEK_CUR)
    shape, fortran, kind = read_header(file)
    if info.compress_type != zipfile.ZIP_STORED or kind.hasobject or fortran:
        raise ValueError("the array cannot be mapped")
    if 0 in shape:  # no system maps nothing
        return np.empty(shape, dtype=kind)
    return np.memmap(file, dtype=kind, mode="r", offset=file.tell(), shape=shape)


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether columns come first, and type of the .npy array at the position of an open file."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, kind = read(file)
    return shape, fortran, kind


def mark_used(entry: Path) -> None:
    """Note that an entry was used now."""
    with suppress(OSError):  # a disk that is read-only
        os.utime(entry)


def warn_not_stored(folder: Path, error: OSError) -> None:
    """Warn that nothing can be cached."""
    warnings.warn(
        f"Cannot cache anything in {folder}: {error.strerror}. The next command takes as long as this one. To use "
        f"another folder, set runtime.cache_dir.",
        stacklevel=3,
    )


def keep_newest(folder: Path, limit: int, kept: Path) -> None:
    """Remove the least recently used entries, files or folders, until the total size is at most `limit` bytes.

    kept: the entry in use, which always stays. Entries that other processes are writing stay, too.
    """
    try:
        entries = sorted(((entry.stat().st_mtime, entry) for entry in folder.iterdir()), reverse=True)
    except OSError:  # another process removes entries at the same time
        return
    total = size_of(kept)
    for used, entry in entries:
        if entry == kept:
            continue
        if entry.name.endswith(PART):
            if time.time() - used > ABANDONED:
                remove(entry)
            continue
        total += size_of(entry)
        if total > limit:
            remove(entry)


def size_of(entry: Path) -> int:
    """Return the bytes of a file, or of all files below a folder; 0 if it is gone."""
    try:
        if entry.is_dir():
            return sum(size_of(child) for child in entry.iterdir())
        return entry.lstat().st_size
    except OSError:
        return 0


def remove(entry: Path) -> None:
    """Remove a file or a folder, as far as possible."""
    if entry.is_dir():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        with suppress(OSError):
            entry.unlink()
