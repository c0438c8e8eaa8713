"""Metrics for TensorBoard, where it is installed and asked for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aggmatch.errors import AggMatchError


class Tracker:
    """Writes the records of `metrics.jsonl` as scalars; on resume, later ones than `step` are dropped."""

    def __init__(self, folder: Path, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise AggMatchError(
                "TensorBoard is not installed. Install it with: pip install 'aggmatch[track]'"
            ) from None
        self.writer = SummaryWriter(str(folder), purge_step=step + 1)

    def write(self, record: Mapping[str, Any]) -> None:
        """One record; lists (such as the fill of the queue) become one scalar each."""
        for name, value in record.items():
            if isinstance(value, list):
                for number, item in enumerate(value):
                    self.writer.add_scalar(f"{name}/{number}", item, record["step"])
            elif name != "step":
                self.writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Flush and close."""
        self.writer.close()
