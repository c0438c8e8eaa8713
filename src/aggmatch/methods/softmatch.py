"""SoftMatch: every pseudo label counts, with a Gaussian weight by how far its confidence is below the running mean."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from aggmatch.config import Fraction, NonNegative, Positive
from aggmatch.functional import PseudoLabels
from aggmatch.methods.alignment import align
from aggmatch.methods.base import Batch, Problem, StepResult
from aggmatch.methods.start import StartingMethod, StartSettings
from aggmatch.models import Network


@dataclass(frozen=True, kw_only=True)
class Config(StartSettings):
    """Section `method` of SoftMatch."""

    momentum: Fraction = 0.999
    """Decay of the running mean and variance of the confidence, and of the mean predictions."""
    width: Positive = 2.0
    """n: the variance of the Gaussian is the running variance divided by n²."""
    alignment: Literal["none", "uniform", "labeled"] = "uniform"
    """Target to which predictions are aligned, for the weight only: none, equal classes (the paper), or the running
    prediction on labelled images (the code behind its tables)."""
    statistics: Literal["unaligned", "aligned"] = "unaligned"
    """Confidence whose running mean and variance are used: before alignment (the paper) or after it (one library)."""
    unlabeled_weight: NonNegative = 1.0
    """λ: weight of the unlabelled loss."""


class SoftMatch(StartingMethod[Config]):
    """Pseudo labels weighted by a truncated Gaussian of their aligned confidence."""

    config_type = Config
    reference = "Chen et al., SoftMatch: Addressing the Quantity-Quality Trade-off in Semi-supervised Learning, 2023"

    confidence: Tensor  # µ_t, 0-d
    variance: Tensor  # σ²_t, 0-d
    probs: Tensor  # ē, (Y,)
    labeled_probs: Tensor  # (Y,), running prediction on labelled images
    uniform: Tensor  # (Y,), equal classes

    def __init__(self, config: Config, problem: Problem) -> None:
        super().__init__(config, problem)
        uniform = torch.full((problem.classes,), 1 / problem.classes)
        self.register_buffer("confidence", torch.tensor(1 / problem.classes))
        self.register_buffer("variance", torch.tensor(1.0))
        self.register_buffer("probs", uniform.clone())
        self.register_buffer("labeled_probs", uniform.clone())
        self.register_buffer("uniform", uniform, persistent=False)

    def learn(self, batch: Batch, online: Network, average: Network) -> StepResult:
        """L = mean CE(y, p(α(x))) + λ · mean w_b · CE(argmax q_b, p(A(u_b))),   q = p(α(u)), not aligned."""
        others, strong, weak = self.joint_pass(batch, online)
        probs_BY = weak.logits.detach().softmax(-1)
        weight_B = self.start.begun * self.weight(probs_BY, others[0].logits.detach().softmax(-1))
        confidence_B, target_B = probs_BY.max(-1)

        loss, parts = self.start.loss(others, batch, online)
        loss_unlabeled = (weight_B * F.cross_entropy(strong.logits, target_B, reduction="none")).mean()
        loss = loss + self.config.unlabeled_weight * loss_unlabeled
        parts |= {
            "loss_unlabeled": loss_unlabeled,
            "confidence": confidence_B.mean(),
            "running_confidence": self.confidence.clone(),
            "variance": self.variance.clone(),
        }
        return StepResult(loss, parts, PseudoLabels(target_B, weight_B))

    @torch.no_grad()
    def weight(self, probs_BY: Tensor, labeled_BY: Tensor) -> Tensor:
        """Update the running statistics with a batch and return the weight of each prediction, (B,).

        w_b = 1 if c_b ≥ µ_t, else exp(−(c_b − µ_t)² / (2 σ²_t / n²)),   c_b: largest aligned probability
        """
        share = 1 - self.config.momentum
        self.probs.lerp_(probs_BY.mean(0), share)
        self.labeled_probs.lerp_(labeled_BY.mean(0), share)
        goal_Y = self.labeled_probs if self.config.alignment == "labeled" else self.uniform
        aligned_BY = probs_BY if self.config.alignment == "none" else align(probs_BY, self.probs, goal_Y)
        aligned_B = aligned_BY.amax(-1)
        counted_B = aligned_B if self.config.statistics == "aligned" else probs_BY.amax(-1)
        self.confidence.lerp_(counted_B.mean(), share)
        self.variance.lerp_(counted_B.var(correction=min(1, len(counted_B) - 1)), share)  # 0 of a single image
        below_B = (aligned_B - self.confidence).clamp(max=0)
        weight_B = torch.exp(-(below_B**2) / (2 * self.variance / self.config.width**2))
        return torch.where(below_B < 0, weight_B, 1.0)  # not 0/0 at the mean if the variance is 0


METHOD = SoftMatch
