"""Means of logged values over the steps between two log steps, kept on the device."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from aggmatch.errors import AggMatchError


class BadValue(NamedTuple):
    """A logged value that was NaN or infinite, and the step at which it first was."""

    name: str
    step: int


class Meters:
    """Running sums of named 0-d tensors, and the first step at which each was not finite.

    Nothing is read back to the host but by `read` and `first_bad_value`, one copy each.
    """

    def __init__(self, device: torch.device) -> None:
        self.names: list[str] = []
        self.added = False
        self.total = torch.zeros(0, device=device)
        self.count = torch.zeros((), device=device)
        self.first_bad = torch.zeros(0, device=device)

    def add(self, values: Mapping[str, Tensor], step: Tensor) -> None:
        """Count the values of one step."""
        if not self.added and list(values) != self.names:  # none yet, or those of a version that logged others
            nothing = {"total": self.total.new_zeros(len(values)), "count": torch.zeros_like(self.count)}
            self.load_state_dict(list(values), nothing)
        self.added = True
        if list(values) != self.names:
            raise AggMatchError(
                f"A method must log the same values in the same order at every step: they were "
                f"{', '.join(self.names)} and are {', '.join(values)}."
            )
        now = torch.stack([value.float() for value in values.values()])
        bad = ~now.isfinite() & (self.first_bad == 0)
        self.first_bad.copy_(torch.where(bad, step + 1, self.first_bad))
        self.total.add_(now)
        self.count.add_(1)

    def first_bad_value(self) -> BadValue | None:
        """The value that was the first not to be finite, if any was: one read from the device."""
        steps = self.first_bad.tolist()
        bad = [BadValue(name, int(step)) for name, step in zip(self.names, steps, strict=True) if step]
        # Of one step, a part comes before the loss it adds to: name the cause, not the sum.
        return min(bad, key=lambda value: (value.step, value.name == "loss"), default=None)

    def read(self) -> dict[str, float]:
        """Means since the last call; starts afresh."""
        means = (self.total / self.count.clamp(min=1)).tolist()
        self.total.zero_()
        self.count.zero_()
        return dict(zip(self.names, means, strict=True))

    def state_dict(self) -> dict[str, Tensor]:
        """Sums and counts."""
        return {"total": self.total, "count": self.count}

    def load_state_dict(self, names: list[str], state: Mapping[str, Tensor]) -> None:
        """Take over the sums of a checkpoint."""
        self.names, self.added = names, False
        self.total = state["total"].to(self.total)
        self.count = state["count"].to(self.count)
        self.first_bad = torch.zeros_like(self.total)
