"""Files that are written completely or not at all, digests that show damage, and the folders of files."""

import hashlib
import json
import os
import re
import stat
import sys
import tempfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from aggmatch.errors import AggMatchError

PART = re.compile(r"\.(?P<name>.+)\.(?P<process>\d+)\.part")
"""The name of a file while it is written; a process that is killed leaves it behind."""
SEAL = "digest"
"""The entry of a JSON file that holds the digest of the others."""

# Reading and writing --------------------------------------------------------------------------------------------------


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that readers see either the old content or the new one, never a part of it."""
    part = part_of(path)
    try:
        refuse_special(path)
        remove_dead_parts(path)
        try:
            with part.open("wb", buffering=0) as file:
                write_all(file.fileno(), data)
                os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
    except OSError as error:
        kept = " Its old content is unchanged." if os.path.lexists(path) else ""
        raise AggMatchError(f"Cannot write {path}: {error.strerror}.{kept}") from error


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes to an open file; the system may take them in several pieces."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def write_output(path: Path, data: bytes) -> None:
    """Write a file that the user named, and create its folder if there is none."""
    make_folder(path.parent)
    write_atomically(path, data)


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write files of a folder, by name, and create the folder if there is none; return the paths."""
    for name, text in texts.items():
        write_output(folder / name, text.encode())
    return [folder / name for name in texts]


def read_bytes(path: Path) -> bytes:
    """Return the content of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise AggMatchError(f"Cannot read {path}: {error.strerror}.") from None


def refuse_special(path: Path) -> None:
    """Raise an `AggMatchError` if the path is a link, a folder, a FIFO or a device: only files are replaced."""
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(kind):
        raise AggMatchError(f"Cannot write {path}: it is a link. Name the file that it leads to, or delete the link.")
    if not stat.S_ISREG(kind):
        what = "a folder" if stat.S_ISDIR(kind) else "not a regular file"
        raise AggMatchError(f"Cannot write {path}: it is {what}. Choose another place.", options="--out")


def check_writable(path: Path) -> None:
    """Raise an `AggMatchError` if a file cannot be written, before the work whose result it will hold.

    Its folder need not exist yet; it is not created.
    """
    try:
        refuse_special(path)
        folder = path.parent
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        part = part_of(folder / path.name)
        part.touch()
        part.unlink()
    except OSError as error:
        raise AggMatchError(f"Cannot write {path}: {error.strerror}. Choose another place.", options="--out") from None


def make_folder(path: Path) -> Path:
    """Return the folder; create it and its parents if they do not exist."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AggMatchError(
            f"Cannot write to {path}: {error.strerror}. Choose another place.", options="--out"
        ) from None
    return path


def cache_folder(chosen: str | Path | None = None) -> Path:
    """Return the folder of cached files: the chosen one, or the user's own; it need not exist yet.

    chosen: the setting `runtime.cache_dir`; a leading `~` is the home folder. Without it: `XDG_CACHE_HOME/aggmatch`,
    `~/Library/Caches/aggmatch` on macOS, and `~/.cache/aggmatch` elsewhere.

    Example: `cache_folder() / "features"`.
    """
    try:
        if chosen:
            return Path(chosen).expanduser()
        configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
        if configured.is_absolute():  # the standard says to ignore other values
            return configured / "aggmatch"
        return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "aggmatch"
    except RuntimeError:  # a user without a home folder, as in some containers
        return Path(tempfile.gettempdir()) / f"aggmatch-{os.getuid()}"


# Parts that a killed process left -----------------------------------------------------------------------------------


def part_of(path: Path) -> Path:
    """The file that this process writes before it gets the name `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def is_part(path: Path) -> bool:
    """Whether a file is one that was being written."""
    return PART.fullmatch(path.name) is not None


def remove_parts(*folders: Path) -> None:
    """Delete the unfinished files in folders in which no other process writes now."""
    for folder in folders:
        for path in folder.iterdir() if folder.is_dir() else ():
            if is_part(path):
                path.unlink(missing_ok=True)


def remove_dead_parts(path: Path) -> None:
    """Delete the unfinished files of `path` whose processes no longer exist, if that is possible."""
    with suppress(OSError):
        for other in path.parent.iterdir():
            match = PART.fullmatch(other.name)
            if match and match["name"] == path.name and not is_running(int(match["process"])):
                other.unlink()


def is_running(process: int) -> bool:
    """Whether a process with this number exists."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


# Digests --------------------------------------------------------------------------------------------------------------


def digest(data: bytes) -> str:
    """The BLAKE2 digest of the bytes, 16 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def digest_of(value: Any) -> str:
    """The digest of a value that JSON can hold; spaces and the order of entries do not matter."""
    return digest(json.dumps(value, sort_keys=True).encode())


def sealed(values: Mapping[str, Any], without: Collection[str] = ()) -> dict[str, Any]:
    """Return the values of a JSON file with one more entry, a digest of all others except those in `without`."""
    covered = {name: value for name, value in values.items() if name not in (*without, SEAL)}
    return {**values, SEAL: digest_of(covered)}


def is_intact(values: Mapping[str, Any], without: Collection[str] = ()) -> bool:
    """Whether sealed values are as they were written; values of old files, which have no digest, always are."""
    return SEAL not in values or sealed(values, without)[SEAL] == values[SEAL]
