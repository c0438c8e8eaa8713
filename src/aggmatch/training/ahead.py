"""Batches of images that are not on the training device: read some steps ahead, and copied on a stream of their own.

Shapes: B labelled and µB unlabelled images of a step.
"""

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aggmatch.data.rows import Rows

SLOTS = 3
"""Batches in memory: one that the device uses, and two that are being read."""


class Slot:
    """Buffers of one batch: its indices and its images, in pinned memory and on the device.

    On a CPU both are the same. Two events keep the order: the device copies only after the step that used its buffers
    before, and the host writes only after that copy.
    """

    def __init__(self, position_B: Tensor, unlabeled_B: Tensor, shape: tuple[int, ...], device: torch.device) -> None:
        on_cuda = device.type == "cuda"
        indices = [torch.empty_like(index, pin_memory=on_cuda) for index in (position_B, unlabeled_B)]
        images = [torch.empty((len(index), *shape), dtype=torch.uint8, pin_memory=on_cuda) for index in indices]
        self.host = self.on_device = (*indices, *images)
        if on_cuda:
            self.on_device = tuple(torch.empty(buffer.shape, dtype=buffer.dtype, device=device) for buffer in self.host)
        self.copied = torch.cuda.Event(blocking=True) if on_cuda else None
        self.used = torch.cuda.Event() if on_cuda else None
        self.mark_used()  # the memory may still be in use by earlier work

    def wait_until_copied(self) -> None:
        """Wait until the host may write to its buffers."""
        if self.copied is not None:
            self.copied.synchronize()

    def copy(self, stream: torch.cuda.Stream | None) -> tuple[Tensor, ...]:
        """Start the copy to the device, for which the current stream waits, and return its buffers there."""
        if stream is not None and self.copied is not None and self.used is not None:
            stream.wait_event(self.used)
            with torch.cuda.stream(stream):
                for target, source in zip(self.on_device, self.host, strict=True):
                    target.copy_(source, non_blocking=True)
            self.copied.record(stream)
            torch.cuda.current_stream(stream.device).wait_event(self.copied)
        return self.on_device

    def mark_used(self) -> None:
        """Note that all work so far on the current stream may read the buffers on the device."""
        if self.used is not None:
            self.used.record()


class Ordered(NamedTuple):
    """A batch that is being read."""

    slot: Slot
    parts: list[Future[None]]
    streams: Mapping[str, Any]
    """Positions of the streams after this batch."""


class ReadAhead:
    """Draws the batches of the next steps early, and reads their images meanwhile.

    rows: the training images. labeled: numbers of the labelled ones. draw: returns the next positions among the
    labelled images, (B,), and numbers of unlabelled images, (µB,), on the CPU. positions: returns where the streams of
    both are. device: the training device. Threads only read, and only the caller's thread uses the device, so a CUDA
    graph can be captured at any time.

    Example: `position_B, unlabeled_B, labeled_images, unlabeled_images = ahead.next()`.
    """

    def __init__(
        self,
        rows: Rows,
        labeled: Tensor,
        draw: Callable[[], tuple[Tensor, Tensor]],
        positions: Callable[[], Mapping[str, Any]],
        device: torch.device,
    ) -> None:
        self.rows, self.labeled, self.draw, self.positions, self.device = rows, labeled, draw, positions, device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.threads = ThreadPoolExecutor(rows.readers, thread_name_prefix="read-ahead")
        self.free: deque[Slot] = deque()
        self.ordered: deque[Ordered] = deque()
        self.current: Slot | None = None
        self.streams = positions()
        """Positions of the streams after the batch that `next` returned last, for checkpoints."""

    def next(self) -> tuple[Tensor, ...]:
        """Return the next positions (B,), numbers (µB,) and images of both on the device, valid until the next call.

        Call it on the stream that uses the batch. Waits only for images that are still being read. Raises an
        `AggMatchError` if they cannot be read.
        """
        if self.current is not None:
            self.current.mark_used()
            self.free.append(self.current)
            self.current = None
        while len(self.ordered) < SLOTS - 1:
            self.order()
        batch = self.ordered.popleft()
        for part in batch.parts:
            part.result()
        self.current, self.streams = batch.slot, batch.streams
        return batch.slot.copy(self.stream)

    def order(self) -> None:
        """Draw one more batch and let the threads read its images."""
        drawn = self.draw()
        slot = self.free.popleft() if self.free else Slot(*drawn, self.rows.shape[1:], self.device)
        slot.wait_until_copied()
        position_B, unlabeled_B, *images = slot.host
        position_B.copy_(drawn[0])
        unlabeled_B.copy_(drawn[1])
        parts = []
        rows = -(-(len(position_B) + len(unlabeled_B)) // self.rows.readers)  # of each thread, rounded up
        for index, target in zip((self.labeled[position_B], unlabeled_B), images, strict=True):
            for some, buffer in zip(index.split(rows), target.split(rows), strict=True):
                parts.append(self.threads.submit(self.rows.read, some.numpy(), buffer.numpy()))
        self.ordered.append(Ordered(slot, parts, self.positions()))

    def restart(self) -> None:
        """Forget the batches that were drawn early; call it when the streams have moved to another position."""
        for batch in self.ordered:
            wait(batch.parts)
            self.free.append(batch.slot)
        self.ordered.clear()
        self.streams = self.positions()
