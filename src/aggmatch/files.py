"""Files that are written completely or not at all, and the folders for them."""

import os
import sys
import tempfile
from pathlib import Path

from aggmatch.errors import AggMatchError


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that readers see either the old content or the new one, never a part of it."""
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
        raise AggMatchError(f"Cannot write {path}: {error.strerror}. Its old content is unchanged.") from error


def check_writable(path: Path) -> None:
    """Raise an `AggMatchError` if a file cannot be written, before the work whose result it will hold."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
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
