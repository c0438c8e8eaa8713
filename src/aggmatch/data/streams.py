"""Endless, seeded, resumable streams of indices."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from aggmatch.data.randomness import Use, bits, permutations
from aggmatch.errors import AggMatchError

BLOCK = 65_536
"""Minimum number of indices made at once: a set of ten images does not need a new permutation at every step."""


class IndexStream:
    """Endless batches of indices: random orders of all indices, one after the other, cut into batches.

    Each index comes once per epoch; a batch may span two epochs. The state is two integers. indices: (N,), not empty.

    The CPU makes the orders, a block of whole epochs at a time, and copies them to the device of `indices` once per
    block: a step costs one slice, and only the first step of a block waits for the device.

    Example: `IndexStream(torch.arange(1437), batch=30, seed=0).next()` has shape (30,).
    """

    def __init__(self, indices: Tensor, batch: int, seed: int) -> None:
        if batch < 1:  # a method decides how many labelled images it takes
            raise AggMatchError(f"A batch must hold at least 1 index, got {batch}.")
        self.indices, self.batch, self.seed = indices, batch, seed
        self.epochs = -(-BLOCK // len(indices))
        self._block = 0
        self._position = 0
        self._order = self._make(0)

    def next(self) -> Tensor:
        """Return the next batch, (batch,), on the device of `indices`. Do not write to it."""
        parts = []
        missing = self.batch
        while missing:
            part = self._order[self._position : self._position + missing]
            parts.append(part)
            missing -= len(part)
            self._advance(len(part))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def state_dict(self) -> dict[str, int]:
        """Return the position of the stream."""
        return {"block": self._block, "position": self._position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue from the position of another stream with the same indices and seed."""
        block, position = state.get("block"), state.get("position")
        size = self.epochs * len(self.indices)
        if type(block) is not int or type(position) is not int or block < 0 or not 0 <= position < size:
            raise AggMatchError(f"A stream of {len(self.indices)} indices cannot continue from {dict(state)}.")
        if block != self._block:
            self._order = self._make(block)
        self._block, self._position = block, position

    def _advance(self, count: int) -> None:
        self._position += count
        if self._position == len(self._order):
            self._block, self._position = self._block + 1, 0
            self._order = self._make(self._block)

    def _make(self, block: int) -> Tensor:
        rows = permutations(bits(self.seed, Use.STREAM, block), self.epochs, len(self.indices))
        return self.indices[torch.from_numpy(rows).view(-1).to(self.indices.device)]


def check_balance(labels: Tensor, classes: Sequence[str], batch: int) -> None:
    """Raise `AggMatchError` if batches of this size cannot hold equally many images of each class."""
    if batch % len(classes):
        raise AggMatchError(
            f"train.batch must be a multiple of {len(classes)}, the number of classes, so that batches hold equally "
            f"many images of each, got {batch}."
        )
    present = set(labels.tolist())
    if missing := [name for number, name in enumerate(classes) if number not in present]:
        raise AggMatchError(
            f"No image has the label '{missing[0]}', but every batch must hold equally many images of each class. "
            f"Label noise or the split file removed them all: use more labels (data.labels), less noise "
            f"(data.noise_rate), another data.fold or another split."
        )


class BalancedStream:
    """Endless batches with equally many indices of each class, from one `IndexStream` per class.

    indices, labels: (N,). classes: all class names; `batch` must be a multiple of their number.
    """

    def __init__(self, indices: Tensor, labels: Tensor, classes: Sequence[str], batch: int, seed: int) -> None:
        check_balance(labels, classes, batch)
        count = len(classes)
        parts = [indices[labels == k] for k in range(count)]
        seeds = np.random.SeedSequence(seed).generate_state(count).tolist()
        self.streams = [IndexStream(part, batch // count, seed) for part, seed in zip(parts, seeds, strict=True)]

    def next(self) -> Tensor:
        """Return the next batch, (batch,), sorted by class."""
        return torch.cat([stream.next() for stream in self.streams])

    def state_dict(self) -> dict[str, dict[str, int]]:
        """Return the positions of the streams."""
        return {str(number): stream.state_dict() for number, stream in enumerate(self.streams)}

    def load_state_dict(self, state: Mapping[str, Mapping[str, int]]) -> None:
        """Continue from the positions of another stream with the same arguments."""
        for number, stream in enumerate(self.streams):
            stream.load_state_dict(state[str(number)])
