"""The first steps of training: features that know the images before pseudo labels count.

With a few labels per class, pseudo labels of the first steps are wrong, and learning from them confirms them. Three
settings help: labelled images are learned in weak and strong views; a head learns by which quarter turn images were
rotated, which teaches features without labels; and pseudo labels count only after a warm-up.

Shape suffixes: B labelled images, R rotated images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aggmatch.config import Count, Natural, NonNegative, Settings
from aggmatch.methods.base import Batch, Problem, Views
from aggmatch.models import Network, Output

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
    warmup: Natural = 0
    """Steps before pseudo labels count."""


class Start(nn.Module):
    """The first steps of a method: what it learns beside pseudo labels, and from which step on these count.

    The step counter is a persistent buffer only if there is a warm-up, so that methods without one keep their state.
    """

    steps: Tensor  # 0-d, steps done

    def __init__(self, config: StartSettings, problem: Problem) -> None:
        super().__init__()
        self.config, self.problem = config, problem
        if config.warmup:
            self.register_buffer("steps", torch.zeros(()))

    def views(self, unlabeled: tuple[str, ...]) -> Views:
        """The views of a method that wants these views of unlabelled images."""
        labeled = ("weak",) if self.config.labeled_views == "weak" else ("weak", "strong")
        return Views(labeled=labeled, unlabeled=unlabeled)

    def build_head(self) -> nn.Module:
        """The classifier of quarter turns, features → 4, or nothing without the rotation task."""
        return nn.Linear(self.problem.features, TURNS) if self.config.rotation_weight else nn.Identity()

    def images(self, batch: Batch, weak_view: Tensor) -> list[Tensor]:
        """Batches of images to learn from beside pseudo labels: views of labelled images, then rotated images."""
        rotated = [rotate_quarters(weak_view, self.config.rotated)] if self.config.rotation_weight else []
        return [*batch.labeled, *rotated]

    def loss(self, outputs: Sequence[Output], batch: Batch, online: Network) -> tuple[Tensor, dict[str, Tensor]]:
        """L_s + λ_r · L_r of the outputs for `images`, and the parts for the log.

        L_s: cross entropy of the labelled images, mean over their views; L_r: cross entropy of the quarter turns.
        """
        labeled = outputs[: len(batch.labeled)]
        loss = loss_labeled = mean([F.cross_entropy(output.logits, batch.labels) for output in labeled])
        parts = {"loss_labeled": loss_labeled}
        if self.config.rotation_weight:
            (rotated,) = outputs[len(batch.labeled) :]
            turn_R = torch.arange(TURNS, device=batch.labels.device).repeat_interleave(len(rotated.feature) // TURNS)
            parts["loss_rotation"] = F.cross_entropy(online.head(rotated.feature), turn_R)
            loss = loss + self.config.rotation_weight * parts["loss_rotation"]
        return loss, parts

    def weighted(self, loss_unlabeled: Tensor) -> Tensor:
        """The unlabelled loss, or 0 during the warm-up; counts a step."""
        if not self.config.warmup:
            return loss_unlabeled
        self.steps.add_(1)
        return (self.steps > self.config.warmup) * loss_unlabeled


def mean(values: Sequence[Tensor]) -> Tensor:
    """Mean of 0-d tensors; a single one is returned as it is."""
    return values[0] if len(values) == 1 else torch.stack(list(values)).mean()


def rotate_quarters(images: Tensor, count: int) -> Tensor:
    """The first images, at most `count` of them, in four parts that are turned by 0°, 90°, 180° and 270°.

    (N, C, H, W) → (R, C, H, W), R the largest multiple of 4 up to N and `count`; at least 4 images are needed.
    """
    part = min(count, len(images)) // TURNS
    return torch.cat([torch.rot90(images[k * part : (k + 1) * part], k, (2, 3)) for k in range(TURNS)])
