"""The metrics of a run: one JSON object per line, and TensorBoard's files if the settings ask for them."""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from aggmatch.errors import AggMatchError
from aggmatch.runs.folder import encode_line, is_record
from aggmatch.storage.files import write_all, write_atomically


class Log:
    """Writes `metrics.jsonl`, one JSON object per line.

    path: the file. position: bytes of it to keep, as stored in a checkpoint; the rest is cut off. tensorboard: a folder
    that gets the same values as scalars, or None. step: the number of steps that are done.

    Example: `with Log(Path("metrics.jsonl")) as log: log.write({"step": 1, "loss": 0.5})`.
    """

    def __init__(self, path: Path, position: int = 0, *, tensorboard: Path | None = None, step: int = 0) -> None:
        self.path = path
        self.writer = summary_writer(tensorboard, step) if tensorboard else None
        try:
            written = path.read_bytes() if path.exists() else b""
            logged = written[:position]
            if len(written) < position:
                logged = logged[: logged.rfind(b"\n") + 1]  # the line that was cut is lost too
                warnings.warn(
                    f"{path} is shorter than when the checkpoint was written; the missing records are lost.",
                    stacklevel=2,
                )
            lines = logged.splitlines(keepends=True)
            readable = [line for line in lines if line.endswith(b"\n") and is_record(line)]  # the summary reads all
            if corrupt := len(lines) - len(readable):
                warnings.warn(f"{path} has corrupt lines, which are dropped: {corrupt} of {len(lines)}.", stacklevel=2)
            if (kept := b"".join(readable)) != written:
                write_atomically(path, kept)
            self.file = path.open("ab", buffering=0)  # closing it after a failed write must not fail again
        except OSError as error:
            raise AggMatchError(f"Cannot write {path}: {error.strerror}.") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        if self.writer:
            self.writer.close()

    @property
    def position(self) -> int:
        """Bytes written."""
        return self.file.seek(0, 2)

    def sync(self) -> int:
        """Make the written lines safe against a power cut, and return their length in bytes."""
        try:
            os.fsync(self.file.fileno())
        except OSError as error:
            raise AggMatchError(f"Cannot write {self.path}: {error.strerror}. Checkpoints are unchanged.") from error
        return self.position

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record."""
        try:
            write_all(self.file.fileno(), encode_line(record))
        except OSError as error:
            raise AggMatchError(f"Cannot write {self.path}: {error.strerror}. Checkpoints are unchanged.") from error
        if self.writer:
            for name, value in scalars(record):
                self.writer.add_scalar(name, value, record["step"])


def summary_writer(folder: Path, step: int) -> Any:
    """TensorBoard's writer; values that an earlier process wrote after `step` are dropped."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise AggMatchError("TensorBoard is not installed. Install it with: pip install 'aggmatch[track]'") from None
    return SummaryWriter(str(folder), purge_step=step + 1)


def scalars(record: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Values of a record by name; each item of a list, such as the fill of the queue, is a value of its own."""
    found: list[tuple[str, float]] = []
    for name, value in record.items():
        if isinstance(value, list):
            found += [(f"{name}/{number}", item) for number, item in enumerate(value)]
        elif name != "step":
            found.append((name, value))
    return found
