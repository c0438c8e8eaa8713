"""Writing files so that nothing is ever half there, and the folders for them."""

import os
from pathlib import Path

from aggmatch.errors import AggMatchError


def write_atomically(path: Path, data: bytes) -> None:
    """Make `path` hold `data`, or leave what was there: a reader sees the old file or the new one, never a part."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise AggMatchError(f"Cannot write {path}: {error.strerror}. What was there before is unchanged.") from error


def check_writable(path: Path) -> None:
    """Refuse a path at which no file can be written, before the work that is to end there."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.touch()
        part.unlink()
    except OSError as error:
        raise AggMatchError(f"Cannot write {path}: {error.strerror}. Choose another --out.") from None


def make_folder(path: Path) -> Path:
    """The folder, made if it is not there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AggMatchError(f"Cannot write to {path}: {error.strerror}. Choose another --out.") from None
    return path
