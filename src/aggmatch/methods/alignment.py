"""Distribution alignment, which several methods use: predictions get the class shares that they should have.

Shape suffixes: B samples, Y classes, W batches of a window.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from aggmatch.config import Count, Fraction, NonNegative, Settings
from aggmatch.methods.base import Problem

EPSILON = 1e-6
"""Added to both distributions, so that a class that is never predicted does not divide by 0."""
Target = Literal["none", "uniform", "labels"]
"""The mean that aligned predictions should have: any, equal classes, or the class shares of the labels."""


class Alignment(nn.Module):
    """Aligns predictions to a target distribution (ReMixMatch; the window of CoMatch and SimMatch).

    q̃ = Normalize(q · p(y) / p̃(y)),   p̃: mean of the unaligned q over the last W batches, this one included

    target: `uniform`, or `labels` for the class shares of the labelled images.
    """

    mean: Tensor  # (W, Y), batch means of unaligned predictions
    batches: Tensor  # 0-d, number of batches seen
    goal: Tensor  # (Y,), p(y)

    def __init__(self, problem: Problem, target: Target, window: int) -> None:
        super().__init__()
        uniform = (1 / problem.classes,) * problem.classes
        shares = problem.class_shares or uniform if target == "labels" else uniform
        self.register_buffer("mean", torch.zeros(window, problem.classes))
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))
        self.register_buffer("goal", torch.tensor(shares), persistent=False)

    @torch.no_grad()
    def forward(self, probs_BY: Tensor) -> Tensor:
        """Aligned predictions, (B, Y); counts this batch."""
        window = len(self.mean)
        self.mean.index_copy_(0, (self.batches % window)[None], probs_BY.float().mean(0, keepdim=True))
        self.batches.add_(1)
        mean_Y = self.mean.sum(0) / self.batches.clamp(max=window)
        return align(probs_BY, mean_Y, self.goal)


class FadingAlignment(nn.Module):
    """Aligns predictions to class shares p(y) by an exponential mean, and fades out after a number of steps.

    m ← d·m + (1 − d)·mean_b q,   d = min(k/(k+1), `decay`),   q̃ = Normalize(q · (p(y) / (m + ε))^a)
    a = 1 up to step `until`, then falls linearly to 0 at step 2·`until`; if `until` is 0, a is always 1

    shares: p(y), one for each class; empty for equal ones. Early on, alignment keeps classes from being lost; later its
    target may be wrong, as the unlabelled images need not have these shares.
    """

    mean: Tensor  # m, (Y,)
    batches: Tensor  # 0-d, number of batches seen
    goal: Tensor  # p(y) + ε, (Y,) or (0,)

    def __init__(self, classes: int, decay: float, until: int, shares: Sequence[float] = ()) -> None:
        super().__init__()
        self.decay, self.until = decay, until
        self.register_buffer("mean", torch.zeros(classes))
        self.register_buffer("batches", torch.zeros(()))
        self.register_buffer("goal", torch.tensor(shares) + EPSILON, persistent=False)

    @torch.no_grad()
    def forward(self, probs_BY: Tensor) -> Tensor:
        """Aligned predictions, (B, Y); counts this batch."""
        keep = (self.batches / (self.batches + 1)).clamp(max=self.decay)
        self.mean.copy_(keep * self.mean + (1 - keep) * probs_BY.mean(0))
        self.batches.add_(1)
        power = (2 - self.batches / self.until).clamp(0, 1) if self.until else 1.0
        scaled_BY = probs_BY / (self.mean + EPSILON) ** power
        if len(self.goal):  # equal shares cancel out
            scaled_BY = scaled_BY * self.goal**power
        return scaled_BY / scaled_BY.sum(-1, keepdim=True)


def build_alignment(problem: Problem, target: Target, window: int) -> nn.Module:
    """An `Alignment`, or for the target `none` a module that leaves predictions unchanged."""
    return nn.Identity() if target == "none" else Alignment(problem, target, window)


def align(probs_BY: Tensor, mean_Y: Tensor, goal_Y: Tensor) -> Tensor:
    """Normalize(q · p(y) / p̃(y)): predictions (B, Y), their running mean (Y,) and its goal (Y,) → (B, Y)."""
    scaled_BY = probs_BY * ((goal_Y + EPSILON) / (mean_Y + EPSILON))
    return scaled_BY / scaled_BY.sum(-1, keepdim=True)


@dataclass(frozen=True, kw_only=True)
class SmoothingSettings(Settings):
    """Settings of methods that align predictions and smooth them by similar examples: CoMatch and SimMatch."""

    threshold: Fraction = 0.95
    """τ: least probability of a smoothed pseudo label that is used."""
    alignment: Target = "uniform"
    """Target of the distribution alignment of predictions."""
    window: Count = 32
    """Batches over which the alignment takes its mean."""
    own_share: Fraction = 0.9
    """α: share of the network's own prediction in a smoothed pseudo label; the rest comes from similar examples."""
    unlabeled_weight: NonNegative = 1.0
    """Weight of the unlabelled loss."""
