"""FixMatch: a confident prediction on a weak view is the target of a strong view of the same image."""

from dataclasses import dataclass

import torch.nn.functional as F

from aggmatch.config import Fraction, NonNegative, Settings
from aggmatch.functional import PseudoLabels
from aggmatch.methods.base import Batch, Method, StepResult, Views, forward_together
from aggmatch.models import Network


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Section `method` of FixMatch."""

    threshold: Fraction = 0.95
    """τ: a pseudo label is used if its probability is at least this."""
    unlabeled_weight: NonNegative = 1.0
    """λ: weight of the unlabelled loss."""


class FixMatch(Method[Config]):
    """Confident predictions on weak views are the targets of strong views."""

    config_type = Config
    reference = "Sohn et al., FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence, 2020"
    views = Views(labeled=("weak",), unlabeled=("weak", "strong"))

    def step(self, batch: Batch, online: Network, average: Network) -> StepResult:
        """L = mean CE(y, p(α(x))) + λ · mean 1[max p(α(u)) ≥ τ] · CE(argmax p(α(u)), p(A(u)))."""
        weak_view, strong_view = batch.unlabeled
        labeled, strong, weak = forward_together(online, *batch.labeled, strong_view, targets=weak_view)
        confidence_B, target_B = weak.logits.detach().softmax(-1).max(-1)
        pseudo = PseudoLabels(target_B, (confidence_B >= self.config.threshold).float())

        loss_labeled = F.cross_entropy(labeled.logits, batch.labels)
        loss_unlabeled = (pseudo.weight * F.cross_entropy(strong.logits, target_B, reduction="none")).mean()
        loss = loss_labeled + self.config.unlabeled_weight * loss_unlabeled
        parts = {"loss_labeled": loss_labeled, "loss_unlabeled": loss_unlabeled, "confidence": confidence_B.mean()}
        return StepResult(loss, parts, pseudo)


METHOD = FixMatch
