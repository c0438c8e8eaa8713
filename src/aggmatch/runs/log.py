"""A run's metrics: lines of JSON, and TensorBoard's files where asked for."""

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, Self, TypedDict

from aggmatch.config import Natural
from aggmatch.errors import AggMatchError
from aggmatch.files import write_atomically
from aggmatch.validate import require


class Record(TypedDict):
    """What a line of the metrics must hold, and what it holds if it holds it; methods add values of their own."""

    step: Natural
    seconds: NotRequired[float]
    loss: NotRequired[float]
    loss_labeled: NotRequired[float]
    loss_unlabeled: NotRequired[float]
    accuracy_average: NotRequired[float]
    accuracy_online: NotRequired[float]
    pseudo_precision: NotRequired[float]
    pseudo_recall: NotRequired[float]
    pseudo_coverage: NotRequired[float]
    confidence: NotRequired[float]
    queue_fill: NotRequired[list[Natural]]


class Log:
    """`metrics.jsonl`, one JSON object a line, appended; cut back to a checkpoint's position on resume.

    With a `tensorboard` folder the same values go there as scalars.
    """

    def __init__(self, path: Path, position: int = 0, *, tensorboard: Path | None = None, step: int = 0) -> None:
        self.path = path
        self.writer = summary_writer(tensorboard, step) if tensorboard else None
        try:
            written = path.read_bytes() if path.exists() else b""
            if len(written) < position:
                warnings.warn(
                    f"{path} is shorter than when the checkpoint was written; the missing records are lost.",
                    stacklevel=2,
                )
            lines = [line for line in written[:position].splitlines(keepends=True) if line.endswith(b"\n")]
            readable = [line for line in lines if is_record(line)]  # at others, the end of the run would fail
            if lost := len(lines) - len(readable):
                warnings.warn(f"{path} has damaged lines, which are left out: {lost} of {len(lines)}.", stacklevel=2)
            if (kept := b"".join(readable)) != written:
                write_atomically(path, kept)
            self.file = path.open("ab")
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
        """Length of what was written, in bytes."""
        return self.file.seek(0, 2)

    def settle(self) -> int:
        """Make sure that a power cut cannot take what was written; returns its length in bytes."""
        try:
            os.fsync(self.file.fileno())
        except OSError as error:
            raise AggMatchError(f"Cannot write {self.path}: {error.strerror}. Checkpoints are unchanged.") from error
        return self.position

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record."""
        try:
            self.file.write(json.dumps(record).encode() + b"\n")
            self.file.flush()
        except OSError as error:
            raise AggMatchError(f"Cannot write {self.path}: {error.strerror}. Checkpoints are unchanged.") from error
        if self.writer:
            for name, value in scalars(record):
                self.writer.add_scalar(name, value, record["step"])


def is_record(line: bytes) -> bool:
    """Whether a line of the metrics can be read."""
    try:
        require(json.loads(line.decode()), Record, "it")
    except (ValueError, RecursionError, AggMatchError):
        return False
    return True


def summary_writer(folder: Path, step: int) -> Any:
    """TensorBoard's writer; what an earlier process wrote after `step` is dropped."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise AggMatchError("TensorBoard is not installed. Install it with: pip install 'aggmatch[track]'") from None
    return SummaryWriter(str(folder), purge_step=step + 1)


def scalars(record: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The values of a record by name; lists (such as the fill of the queue) item by item."""
    found: list[tuple[str, float]] = []
    for name, value in record.items():
        if isinstance(value, list):
            found += [(f"{name}/{number}", item) for number, item in enumerate(value)]
        elif name != "step":
            found.append((name, value))
    return found


def read_log(path: Path) -> list[dict[str, Any]]:
    """Records of a metrics file; a last line cut short by a kill is left out."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise AggMatchError(f"Cannot read {path}: {error.strerror}.") from None
    records = []
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        try:
            record = json.loads(line.decode())
        except (ValueError, RecursionError):
            if number == len(lines):  # nothing, or cut short: whole lines end before it
                break
            raise AggMatchError(f"Cannot read {where}: it is not JSON.") from None
        records.append(require(record, Record, where))
    return records
