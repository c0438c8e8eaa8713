"""Parts that several methods use: distribution alignment, and the first steps of training.

With a few labels per class, pseudo labels of the first steps are wrong, and learning from them confirms them. Three
settings of the first steps help: labelled images are learned in weak and strong views; a head learns to predict the
quarter turn of rotated images, which teaches features without labels; pseudo labels count only after a warm-up.

Shape suffixes: B samples, Y classes, W batches of a window, R rotated images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aggmatch.config import Count, Fraction, Natural, NonNegative, Settings
from aggmatch.methods.base import Batch, Method, Problem, Views
from aggmatch.models import Network, Output

# Distribution alignment ----------------------------------------------------------------------------------------------

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


# First steps ----------------------------------------------------------------------------------------------------------

TURNS = 4


@dataclass(frozen=True, kw_only=True)
class StartSettings(Settings):
    """Settings of the first steps, which methods add to their own. All are off by default."""

    labeled_views: Literal["weak", "both"] = "weak"
    """Views of labelled images that are learned: weak ones, or weak and strong ones in equal parts."""
    rotation_weight: NonNegative = 0.0
    """λ_r: weight of the rotation task; 0 for none. Switch it off for images without an up direction, such as aerial
    photographs."""
    rotated: Count = 256
    """Unlabelled images that each step rotates, a quarter of them by each of 0°, 90°, 180° and 270°."""
    rotation_steps: Natural = 0
    """Steps with the rotation task; later ones are faster, and log a rotation loss of 0. 0: all steps."""
    warmup: Natural = 0
    """Steps before pseudo labels count."""


class Start(nn.Module):
    """The first steps of a method: what it learns in addition to pseudo labels, and from which step these count.

    The step counter is a persistent buffer that exists only with a warm-up: other checkpoints have no such entry.
    """

    steps: Tensor  # 0-d, steps done

    def __init__(self, config: StartSettings, problem: Problem) -> None:
        super().__init__()
        self.config, self.problem = config, problem
        self.rotating = config.rotation_weight > 0
        self.warming = config.warmup > 0
        if config.warmup:
            self.register_buffer("steps", torch.zeros(()))

    def views(self, unlabeled: tuple[str, ...]) -> Views:
        """The views of a method: these of unlabelled images, and those of labelled images that the settings choose."""
        labeled = ("weak",) if self.config.labeled_views == "weak" else ("weak", "strong")
        return Views(labeled=labeled, unlabeled=unlabeled)

    def build_head(self) -> nn.Module:
        """The classifier of quarter turns, features → 4, or nothing without the rotation task."""
        return nn.Linear(self.problem.features, TURNS) if self.config.rotation_weight else nn.Identity()

    def refresh(self, step: int) -> int:
        """Begin or end the rotation task at its step; returns the stage of the method (`Method.stage`)."""
        over = 0 < self.config.rotation_steps <= step
        self.rotating = self.config.rotation_weight > 0 and not over
        self.warming = step < self.config.warmup
        return int(over)

    def images(self, batch: Batch, weak_view: Tensor) -> list[Tensor]:
        """Batches to learn from in addition to pseudo labels: views of labelled images, then rotated images."""
        rotated = [rotate_quarters(weak_view, self.config.rotated)] if self.rotating else []
        return [*batch.labeled, *rotated]

    def loss(self, outputs: Sequence[Output], batch: Batch, online: Network) -> tuple[Tensor, dict[str, Tensor]]:
        """L_s + λ_r · L_r of the outputs for `images`, and the parts for the log.

        L_s: cross entropy of the labelled images, mean over their views; L_r: cross entropy of the quarter turns.
        """
        labeled = outputs[: len(batch.labeled)]
        loss = loss_labeled = mean([F.cross_entropy(output.logits, batch.labels) for output in labeled])
        parts = {"loss_labeled": loss_labeled}
        if self.config.rotation_weight:
            parts["loss_rotation"] = torch.zeros_like(loss)
        if self.rotating:
            (rotated,) = outputs[len(batch.labeled) :]
            turn_R = torch.arange(TURNS, device=batch.labels.device).repeat_interleave(len(rotated.feature) // TURNS)
            parts["loss_rotation"] = F.cross_entropy(online.head(rotated.feature), turn_R)
            loss = loss + self.config.rotation_weight * parts["loss_rotation"]
        return loss, parts

    def counted(self, weight_B: Tensor) -> Tensor:
        """The weights of pseudo labels in the loss, all 0 during the warm-up; counts a step."""
        if not self.config.warmup:
            return weight_B
        self.steps.add_(1)
        return (self.steps > self.config.warmup) * weight_B


S = TypeVar("S", bound=StartSettings)


class StartingMethod(Method[S]):
    """A method with the settings of the first steps, one weak and one strong view, and no other head.

    Its step makes `start.images` part of the joint pass, adds `start.loss` of their outputs, and passes the weights of
    its pseudo labels through `start.counted`.
    """

    views = Views(labeled=("weak",), unlabeled=("weak", "strong"))

    def __init__(self, config: S, problem: Problem) -> None:
        super().__init__(config, problem)
        self.start = Start(config, problem)
        self.views = self.start.views(unlabeled=("weak", "strong"))

    def build_head(self) -> nn.Module:
        """Return the classifier of the rotation task, if there is one."""
        return self.start.build_head()

    def refresh(self, step: int) -> None:
        """Begin or end the task of the first steps."""
        self.stage = self.start.refresh(step)


def mean(values: Sequence[Tensor]) -> Tensor:
    """Mean of 0-d tensors; a single one is returned unchanged."""
    return values[0] if len(values) == 1 else torch.stack(list(values)).mean()


def rotate_quarters(images: Tensor, count: int) -> Tensor:
    """The first images, at most `count`, in four parts that are rotated by 0°, 90°, 180° and 270°.

    (N, C, H, W) → (R, C, H, W), R the largest multiple of 4 up to N and `count`; at least 4 images are needed.
    """
    part = rotated_count(count, len(images)) // TURNS
    return torch.cat([torch.rot90(images[k * part : (k + 1) * part], k, (2, 3)) for k in range(TURNS)])


def rotated_count(count: int, images: int) -> int:
    """R: the largest multiple of 4 up to `count` and the number of images."""
    return min(count, images) // TURNS * TURNS
