"""FlexMatch: every class has its own threshold, which is lower while the network rarely predicts the class."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from aggmatch.config import Fraction, NonNegative
from aggmatch.functional import PseudoLabels, one_hot
from aggmatch.methods.base import Batch, Problem, StepResult
from aggmatch.methods.start import StartingMethod, StartSettings
from aggmatch.models import Network

UNMARKED = -1


@dataclass(frozen=True, kw_only=True)
class Config(StartSettings):
    """Section `method` of FlexMatch."""

    threshold: Fraction = 0.95
    """τ: highest threshold of a class, and the confidence with which an image is marked."""
    lowest_threshold: Fraction = 0.0
    """Lower bound of the thresholds of the classes; the authors found 0.5 slightly better in some cases."""
    unlabeled_weight: NonNegative = 1.0
    """λ: weight of the unlabelled loss."""


class FlexMatch(StartingMethod[Config]):
    """FixMatch with a threshold per class that follows how well the class is learned."""

    config_type = Config
    reference = "Zhang et al., FlexMatch: Boosting Semi-Supervised Learning with Curriculum Pseudo Labeling, 2021"

    mark: Tensor  # (N,) class that was last predicted with confidence τ for each training image, or UNMARKED

    def __init__(self, config: Config, problem: Problem) -> None:
        super().__init__(config, problem)
        self.register_buffer("mark", torch.full((problem.images,), UNMARKED))

    @classmethod
    def needs_even_classes(cls, config: Config) -> bool:
        """A rare class never gets as many marks as the others, so that its threshold stays low."""
        return True

    def learn(self, batch: Batch, online: Network, average: Network) -> StepResult:
        """L = mean CE(y, p(α(x))) + λ · mean 1[max p(α(u)) ≥ T(ŷ)] · CE(ŷ, p(A(u))),   ŷ = argmax p(α(u))."""
        others, strong, weak = self.joint_pass(batch, online)
        confidence_B, target_B = weak.logits.detach().softmax(-1).max(-1)
        threshold_Y = self.thresholds()  # from the marks of earlier steps
        pseudo = PseudoLabels(target_B, self.start.begun * (confidence_B >= threshold_Y[target_B]))
        self.update_marks(batch.unlabeled_index, confidence_B, target_B)

        loss, parts = self.start.loss(others, batch, online)
        loss_unlabeled = (pseudo.weight * F.cross_entropy(strong.logits, target_B, reduction="none")).mean()
        loss = loss + self.config.unlabeled_weight * loss_unlabeled
        parts |= {
            "loss_unlabeled": loss_unlabeled,
            "confidence": confidence_B.mean(),
            "threshold": threshold_Y.mean(),
            "threshold_lowest": threshold_Y.amin(),
            "threshold_highest": threshold_Y.amax(),
        }
        return StepResult(loss, parts, pseudo)

    def thresholds(self) -> Tensor:
        """T(c) = τ · β/(2 − β),   β(c) = σ(c) / max(max σ, unmarked),   σ(c): images marked as class c; (Y,)."""
        count_Y = one_hot(self.mark, self.problem.classes).sum(0)
        unmarked = self.problem.unlabeled_images - count_Y.sum()
        learned_Y = count_Y / torch.maximum(count_Y.max(), unmarked).clamp(min=1)
        return (self.config.threshold * learned_Y / (2 - learned_Y)).clamp(min=self.config.lowest_threshold)

    def update_marks(self, index_B: Tensor, confidence_B: Tensor, target_B: Tensor) -> None:
        """Mark the images whose confidence is at least the fixed τ; the thresholds of classes do not matter here.

        An image may be in a batch twice: its last sure prediction counts. The largest position of it is found by a
        reduction, because writing to the same place twice has no defined order on a GPU.
        """
        position_B = torch.arange(len(index_B), device=index_B.device)
        sure_B = torch.where(confidence_B >= self.config.threshold, position_B, UNMARKED)
        last_N = torch.full_like(self.mark, UNMARKED).scatter_reduce_(0, index_B, sure_B, "amax")
        self.mark.copy_(torch.where(last_N == UNMARKED, self.mark, target_B[last_N.clamp(min=0)]))


METHOD = FlexMatch
