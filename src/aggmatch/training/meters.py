"""Means of logged values between two log steps, summed on the device, and the rate of training."""

import time
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from aggmatch.errors import AggMatchError


class BadValue(NamedTuple):
    """A logged value that was NaN or infinite, and the first such step."""

    name: str
    step: int


class Meters:
    """Running sums of named 0-d tensors, and the first step at which each was not finite.

    Only `read` and `first_bad_value` read from the device, with one copy each.
    """

    def __init__(self, device: torch.device) -> None:
        self.names: list[str] = []
        self.added = False
        self.total = torch.zeros(0, device=device)
        self.count = torch.zeros((), device=device)
        self.first_bad = torch.zeros(0, device=device)

    def add(self, values: Mapping[str, Tensor], step: Tensor) -> None:
        """Add the values of one step."""
        if (
            not self.added and list(values) != self.names
        ):  # the first step, or a checkpoint of a version that logged other values
            empty = {"total": self.total.new_zeros(len(values)), "count": torch.zeros_like(self.count)}
            self.load_state_dict(list(values), empty)
        self.added = True
        if list(values) != self.names:
            raise AggMatchError(
                f"A method must log the same values in the same order at every step, got {', '.join(values)} "
                f"after {', '.join(self.names)}."
            )
        now = torch.stack([value.float() for value in values.values()])
        bad = ~now.isfinite() & (self.first_bad == 0)
        self.first_bad.copy_(torch.where(bad, step + 1, self.first_bad))
        self.total.add_(now)
        self.count.add_(1)

    def first_bad_value(self) -> BadValue | None:
        """Return the first value that was not finite, or None; reads once from the device."""
        steps = self.first_bad.tolist()
        bad = [BadValue(name, int(step)) for name, step in zip(self.names, steps, strict=True) if step]
        # Within one step, name a part of the loss rather than the loss: the part is the cause.
        return min(bad, key=lambda value: (value.step, value.name == "loss"), default=None)

    def read(self) -> dict[str, float]:
        """Return the means since the last call, and start again from zero."""
        means = (self.total / self.count.clamp(min=1)).tolist()
        self.total.zero_()
        self.count.zero_()
        return dict(zip(self.names, means, strict=True))

    def state_dict(self) -> dict[str, Tensor]:
        """Sums and counts."""
        return {"total": self.total, "count": self.count}

    def load_state_dict(self, names: list[str], state: Mapping[str, Tensor]) -> None:
        """Continue from the sums of a checkpoint."""
        self.names, self.added = names, False
        self.total = state["total"].to(self.total)
        self.count = state["count"].to(self.count)
        self.first_bad = torch.zeros_like(self.total)


class Pace:
    """Images per second between two log steps."""

    def __init__(self, images_per_step: int, step: int) -> None:
        self.images_per_step = images_per_step
        self.restart(step)

    def restart(self, step: int) -> None:
        """Measure from this step on, so that an evaluation or a checkpoint before it does not count."""
        self.since, self.first = time.monotonic(), step

    def read(self, step: int) -> float:
        """Return the images per second up to this step, and restart."""
        steps, seconds = step - self.first, time.monotonic() - self.since
        self.restart(step)
        return round(steps * self.images_per_step / max(seconds, 1e-9), 1)
