"""FreeMatch: thresholds follow the running confidence of the network, overall and by class."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from aggmatch.config import Fraction, NonNegative
from aggmatch.functional import PseudoLabels, one_hot
from aggmatch.methods.base import Batch, Problem, StepResult
from aggmatch.methods.start import StartingMethod, StartSettings
from aggmatch.models import Network

TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class Config(StartSettings):
    """Section `method` of FreeMatch."""

    momentum: Fraction = 0.999
    """Decay of the running confidence, class shares and histogram."""
    unlabeled_weight: NonNegative = 1.0
    """w_u: weight of the unlabelled loss."""
    fairness_weight: NonNegative = 0.01
    """w_f: weight of the fairness term; 0.01 in the settings behind the published tables."""
    fairness_sign: Literal["printed", "opposite"] = "printed"
    """`printed`: the term as published and released, which moves predictions away from the running bias. `opposite`:
    the cross entropy, whose minimum is the running distribution."""
    lowest_threshold: Fraction = 0.0
    """Lower bound of the thresholds; the authors clamp to [0.9, 0.95] on SVHN."""
    highest_threshold: Fraction = 1.0
    """Upper bound of the thresholds."""


class FreeMatch(StartingMethod[Config]):
    """FixMatch with self-adaptive thresholds, overall and by class, and a term for fair class shares."""

    config_type = Config
    reference = "Wang et al., FreeMatch: Self-adaptive Thresholding for Semi-supervised Learning, 2023"

    confidence: Tensor  # τ_t, 0-d
    probs: Tensor  # p̃, (Y,)
    histogram: Tensor  # h̃, (Y,)

    def __init__(self, config: Config, problem: Problem) -> None:
        super().__init__(config, problem)
        uniform = 1 / problem.classes
        self.register_buffer("confidence", torch.tensor(uniform))
        self.register_buffer("probs", torch.full((problem.classes,), uniform))
        self.register_buffer("histogram", torch.full((problem.classes,), uniform))

    def learn(self, batch: Batch, online: Network, average: Network) -> StepResult:
        """L = mean CE(y, p(α(x))) + w_u · mean 1[max q ≥ T(q̂)] · CE(q̂, Q) + w_f · L_f,   q = p(α(u)), Q = p(A(u))."""
        others, strong, weak = self.joint_pass(batch, online)
        probs_BY = weak.logits.detach().softmax(-1)
        confidence_B, target_B = probs_BY.max(-1)
        self.update(probs_BY, confidence_B, target_B)  # before the thresholds, which include this batch
        threshold_Y = self.thresholds()
        pseudo = PseudoLabels(target_B, self.start.begun * (confidence_B >= threshold_Y[target_B]))

        loss, parts = self.start.loss(others, batch, online)
        loss_unlabeled = (pseudo.weight * F.cross_entropy(strong.logits, target_B, reduction="none")).mean()
        loss_fairness = self.fairness(strong.logits.softmax(-1), pseudo.weight)
        loss = loss + self.config.unlabeled_weight * loss_unlabeled + self.config.fairness_weight * loss_fairness
        parts |= {
            "loss_unlabeled": loss_unlabeled,
            "loss_fairness": loss_fairness,
            "confidence": confidence_B.mean(),
            "running_confidence": self.confidence.clone(),
            "threshold": threshold_Y.mean(),
            "threshold_lowest": threshold_Y.amin(),
            "threshold_highest": threshold_Y.amax(),
        }
        return StepResult(loss, parts, pseudo)

    def update(self, probs_BY: Tensor, confidence_B: Tensor, target_B: Tensor) -> None:
        """Move τ_t, p̃ and h̃ towards this batch; they stay as they are during the warm-up."""
        share = (1 - self.config.momentum) * self.start.begun
        self.confidence.lerp_(confidence_B.mean(), share)
        self.probs.lerp_(probs_BY.mean(0), share)
        self.histogram.lerp_(one_hot(target_B, self.problem.classes).float().mean(0), share)

    def thresholds(self) -> Tensor:
        """T(c) = τ_t · p̃(c) / max p̃, (Y,)."""
        threshold_Y = self.confidence * self.probs / self.probs.max()
        return threshold_Y.clamp(self.config.lowest_threshold, self.config.highest_threshold)

    def fairness(self, strong_BY: Tensor, kept_B: Tensor) -> Tensor:
        """L_f = Σ_c a_c log r_c,   a = Normalize(p̃/h̃),   r = Normalize(p̄/h̄) over the kept images; 0 if none is kept.

        p̄: mean of Q (with gradient), h̄: histogram of argmax Q. A class without a kept image drops out of r.
        """
        kept = kept_B.sum()
        mean_Y = (kept_B[:, None] * strong_BY).sum(0) / kept.clamp(min=1)
        count_Y = (kept_B[:, None] * one_hot(strong_BY.argmax(-1), self.problem.classes)).sum(0)
        inverse_Y = torch.where(count_Y > 0, kept / count_Y.clamp(min=1), 0.0)
        running_Y = self.probs / self.histogram.clamp(min=TINY)
        running_Y = running_Y / running_Y.sum()
        current_Y = mean_Y * inverse_Y
        current_Y = current_Y / current_Y.sum().clamp(min=TINY)
        term = (running_Y * torch.log(current_Y + TINY)).sum()
        signed = term if self.config.fairness_sign == "printed" else -term
        return torch.where(kept > 0, signed, signed.detach() * 0)


METHOD = FreeMatch
