"""Writing files so that nothing is ever half there."""

import os
import tempfile
from pathlib import Path

from aggmatch.errors import AggMatchError


def write_atomically(path: Path, data: bytes) -> None:
    """Make `path` hold `data`, or leave what was there: a reader sees the old file or the new one, never a part."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise AggMatchError(f"Cannot write {path}: {error.strerror}. What was there before is unchanged.") from error
