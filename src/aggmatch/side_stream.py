"""A side stream: on a CUDA device, two pieces of a step run at the same time."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch


class SideWork:
    """Work that was started on a side stream. Call `join` before you use its results."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        self.stream = stream

    def join(self) -> None:
        """Make the current stream wait for the work; the host does not wait."""
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)


@contextmanager
def side_stream(device: torch.device) -> Iterator[SideWork]:
    """Run the block on a side stream, in parallel with the code after it, until `join`. On a CPU it just runs.

    Small kernels of one stream fill the gaps of the other. The side stream first waits for all earlier work, so it does
    not write early to memory that the previous step has freed. For the same reason, do not free tensors that the block
    reads before `join`.

    Example: `with side_stream(x.device) as work: y = f(x)`, then `z = g(x)`, `work.join()` and `y + z`.
    """
    if device.type != "cuda":
        yield SideWork(None)
        return
    stream = stream_of(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield SideWork(stream)


@cache
def stream_of(device: torch.device) -> torch.cuda.Stream:
    """Return the one side stream of a device. There is only one because the allocator keeps a pool for each stream."""
    return torch.cuda.Stream(device)
