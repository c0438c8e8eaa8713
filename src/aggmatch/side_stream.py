"""Two pieces of a step at the same time: on a CUDA device, work on a stream of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch


class Beside:
    """Work that was begun and may still run; `join` before using its results."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        self.stream = stream

    def join(self) -> None:
        """Let what follows wait for the work."""
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)


@contextmanager
def beside(device: torch.device) -> Iterator[Beside]:
    """What is called within runs beside what is called after it, until `join`; on a CPU it simply runs.

    Small kernels of one fill the gaps of the other. The stream waits for all earlier work, so memory that the step
    before has freed is not written too early; for the same reason, what is read within must not be freed before `join`.
    """
    if device.type != "cuda":
        yield Beside(None)
        return
    stream = side_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield Beside(stream)


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """The one side stream of a device: the allocator keeps memory apart for each."""
    return torch.cuda.Stream(device)
