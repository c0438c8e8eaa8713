"""Means of logged values between two log steps, summed on the device, and the rate of training."""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aggmatch.errors import AggMatchError

DIGITS = 4
"""Decimals of the items of a logged list; a list of a hundred classes would otherwise be most of the log."""


class BadValue(NamedTuple):
    """A logged value that was NaN or infinite, and the first such step."""

    name: str
    step: int


class Meters:
    """Running sums of named tensors, 0-d or vectors of two or more, and the first step at which each was not finite.

    Only `read` and `first_bad_value` read from the device, with one copy each.
    """

    def __init__(self, device: torch.device) -> None:
        self.names: list[str] = []  # of each sum; all sums of a vector have the same name
        self.added = False
        self.total = torch.zeros(0, device=device)
        self.count = torch.zeros((), device=device)
        self.first_bad = torch.zeros(0, device=device)

    def add(self, values: Mapping[str, Tensor], step: Tensor) -> None:
        """Add the values of one step."""
        names = [name for name, value in values.items() for _ in range(value.numel())]
        if not self.added and names != self.names:  # the first step, a new stage, or a checkpoint of another version
            empty = {"total": self.total.new_zeros(len(names)), "count": torch.zeros_like(self.count)}
            self.load_state_dict(names, empty)
        self.added = True
        if names != self.names:
            raise AggMatchError(
                f"A method must log the same values in the same order at every step of a stage, "
                f"got {', '.join(values)} after {', '.join(dict.fromkeys(self.names))}."
            )
        now = torch.cat([value.float().reshape(-1) for value in values.values()])
        bad = ~now.isfinite() & (self.first_bad == 0)
        self.first_bad.copy_(torch.where(bad, step + 1, self.first_bad))
        self.total.add_(now)
        self.count.add_(1)

    def expect_other_values(self) -> None:
        """Let the next step log other values. If it does, the sums so far are dropped."""
        self.added = False

    def first_bad_value(self) -> BadValue | None:
        """Return the first value that was not finite, or None; reads once from the device."""
        steps = self.first_bad.tolist()
        bad = [BadValue(name, int(step)) for name, step in zip(self.names, steps, strict=True) if step]
        # Within one step, name a part of the loss rather than the loss: the part is the cause.
        return min(bad, key=lambda value: (value.step, value.name == "loss"), default=None)

    def read(self) -> dict[str, Any]:
        """Return the means since the last call, floats or lists of floats, and start again from zero."""
        means: dict[str, list[float]] = {}
        for name, mean in zip(self.names, (self.total / self.count.clamp(min=1)).tolist(), strict=True):
            means.setdefault(name, []).append(mean)
        self.total.zero_()
        self.count.zero_()
        return {name: mean if len(mean) > 1 else mean[0] for name, mean in means.items()}

    def state_dict(self) -> dict[str, Tensor]:
        """Sums and counts."""
        return {"total": self.total, "count": self.count}

    def load_state_dict(self, names: list[str], state: Mapping[str, Tensor]) -> None:
        """Continue from the sums of a checkpoint."""
        self.names, self.added = names, False
        self.total = state["total"].to(self.total)
        self.count = state["count"].to(self.count)
        self.first_bad = torch.zeros_like(self.total)


def pseudo_label_metrics(means: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a log line from means over steps, with quotients in place of the scores they come from.

    means: of all logged values. Scores of pseudo labels are named `pseudo_` and the name that `score_pseudo_labels`
    gives them. Without any weight there is no precision and no share of a class; if all pseudo labels are right, or
    all wrong, there is no AUC.
    """
    metrics = dict(means)
    by_class, ordered, pairs = (metrics.pop(f"pseudo_{name}", None) for name in ("by_class", "ordered", "pairs"))
    if coverage := metrics.get("pseudo_coverage"):
        if "pseudo_recall" in metrics:
            metrics["pseudo_precision"] = metrics["pseudo_recall"] / coverage
        if by_class is not None:
            metrics["pseudo_class_share"] = [round(weight / coverage, DIGITS) for weight in by_class]
    if pairs:
        metrics["pseudo_auc"] = ordered / pairs
    if precisions := metrics.get("pseudo_precision_by_weight"):
        metrics["pseudo_precision_by_weight"] = [round(precision, DIGITS) for precision in precisions]
    return metrics


class Pace:
    """Images per second between two log steps."""

    def __init__(self, step: int) -> None:
        self.restart(step)

    def restart(self, step: int) -> None:
        """Measure from this step on, so that an evaluation or a checkpoint before it does not count."""
        self.since, self.first = time.monotonic(), step

    def read(self, step: int, images_per_step: int) -> float:
        """Return the images per second up to this step, and restart."""
        steps, seconds = step - self.first, time.monotonic() - self.since
        self.restart(step)
        return round(steps * images_per_step / max(seconds, 1e-9), 1)
