"""Endless, seeded, resumable streams of indices."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from aggmatch.data.randomness import Use, bits, permutations
from aggmatch.errors import AggMatchError

BLOCK = 65_536
"""Least indices made at once, so that a set of ten images does not need a permutation at every step."""


class IndexStream:
    """Batches of indices without end: one random order of all of them after another, cut into batches.

    A batch may span two epochs; within an epoch each index comes once. Of `world` processes with equal seeds, each
    takes its part of a common batch of batch · world. The state is two integers and the same in all of them.

    Orders are made on the CPU, a block of whole epochs at a time, and moved to the device of `indices` once per block:
    a step costs a slice, and only the first of a block waits for the device.
    """

    def __init__(self, indices: Tensor, batch: int, seed: int, rank: int = 0, world: int = 1) -> None:
        if indices.ndim != 1 or not len(indices):
            raise AggMatchError(
                f"A stream needs a list of indices that is not empty, got shape {tuple(indices.shape)}."
            )
        if batch < 1:
            raise AggMatchError(f"A batch must hold at least 1 index, got {batch}.")
        if seed < 0:
            raise AggMatchError(f"The seed of a stream must be at least 0, got {seed}.")
        if not 0 <= rank < world:
            raise AggMatchError(f"The rank of a stream must be in [0, {world - 1}], got {rank}.")
        self.indices, self.batch, self.seed = indices, batch, seed
        self.rank, self.world = rank, world
        self.epochs = -(-BLOCK // len(indices))
        self._block = 0
        self._position = 0
        self._order = self._make(0)

    def next(self) -> Tensor:
        """This process's part of the next batch, (batch,), on the device of `indices`. A view: do not write to it."""
        skipped = self.rank * self.batch
        self._advance(skipped)
        parts = []
        missing = self.batch
        while missing:
            part = self._order[self._position : self._position + missing]
            parts.append(part)
            missing -= len(part)
            self._advance(len(part))
        self._advance((self.world - 1) * self.batch - skipped)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def state_dict(self) -> dict[str, int]:
        """Where the stream stands."""
        return {"block": self._block, "position": self._position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from where another stream of the same indices and seed stood."""
        block, position = state.get("block"), state.get("position")
        size = self.epochs * len(self.indices)
        if type(block) is not int or type(position) is not int or block < 0 or not 0 <= position < size:
            raise AggMatchError(f"A stream of {len(self.indices)} indices cannot continue from {dict(state)}.")
        if block != self._block:
            self._order = self._make(block)
        self._block, self._position = block, position

    def _advance(self, count: int) -> None:
        skipped, self._position = divmod(self._position + count, len(self._order))
        if skipped:
            self._block += skipped
            self._order = self._make(self._block)

    def _make(self, block: int) -> Tensor:
        rows = permutations(bits(self.seed, Use.STREAM, block), self.epochs, len(self.indices))
        return self.indices[torch.from_numpy(rows).view(-1).to(self.indices.device)]


def check_balance(labels: Tensor, classes: Sequence[str], batch: int) -> None:
    """Refuse labels and a size of batches of which no batch can hold equally many images of each class."""
    if batch % len(classes):
        raise AggMatchError(
            f"train.batch must be a multiple of {len(classes)}, the number of classes, for batches that hold equally "
            f"many images of each, got {batch}."
        )
    present = set(labels.tolist())
    if missing := [name for number, name in enumerate(classes) if number not in present]:
        raise AggMatchError(
            f"No image is labelled as class '{missing[0]}', but every batch must hold equally many images of each "
            f"class. Label noise or the split file leaves it none: take more labels (data.labels), less noise "
            f"(data.noise_rate), another data.fold or another split."
        )


class BalancedStream:
    """Batches that hold equally many indices of each class: one `IndexStream` a class, side by side."""

    def __init__(self, indices: Tensor, labels: Tensor, classes: Sequence[str], batch: int, seed: int) -> None:
        check_balance(labels, classes, batch)
        count = len(classes)
        parts = [indices[labels == k] for k in range(count)]
        seeds = np.random.SeedSequence(seed).generate_state(count).tolist()
        self.streams = [IndexStream(part, batch // count, seed) for part, seed in zip(parts, seeds, strict=True)]

    def next(self) -> Tensor:
        """The next batch, class by class, (batch,)."""
        return torch.cat([stream.next() for stream in self.streams])

    def state_dict(self) -> dict[str, dict[str, int]]:
        """Where the streams stand."""
        return {str(number): stream.state_dict() for number, stream in enumerate(self.streams)}

    def load_state_dict(self, state: Mapping[str, Mapping[str, int]]) -> None:
        """Go on from where another such stream stood."""
        for number, stream in enumerate(self.streams):
            stream.load_state_dict(state[str(number)])
