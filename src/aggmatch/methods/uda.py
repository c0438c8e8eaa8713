"""UDA: a confident prediction on a weak view, sharpened, is the target of a strong view of the same image."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from aggmatch.config import Fraction, NonNegative, Positive, Settings
from aggmatch.functional import PseudoLabels, entropy, soft_cross_entropy
from aggmatch.methods.base import Batch, Method, StepResult, Views, forward_together
from aggmatch.models import Network


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Section `method` of UDA.

    The authors of FixMatch ran it with a threshold of 0.95 and a temperature of 1; so does `aggmatch reproduce`.
    """

    threshold: Fraction = 0.8
    """τ: a prediction is used as a target if its probability, before sharpening, is at least this."""
    temperature: Positive = 0.4
    """T: softmax temperature that sharpens the target."""
    unlabeled_weight: NonNegative = 1.0
    """λ: weight of the unlabelled loss."""
    annealing: Literal["none", "linear", "log", "exp"] = "none"
    """Training-signal annealing: a labelled image counts only if the probability of its label is at most η. η grows
    from 1/Y to 1 linearly, early (`log`) or late (`exp`, for few labels)."""


class UDA(Method[Config]):
    """Confident predictions on weak views, sharpened, are the soft targets of strong views."""

    config_type = Config
    reference = "Xie et al., Unsupervised Data Augmentation for Consistency Training, 2020"
    views = Views(labeled=("weak",), unlabeled=("weak", "strong"))

    def step(self, batch: Batch, online: Network, average: Network) -> StepResult:
        """L = mean over {p_y(α(x)) ≤ η} of CE(y, p(α(x))) + λ · mean 1[max p(α(u)) ≥ τ] · KL(q ‖ p(A(u))).

        q = softmax(logits(α(u)) / T), without gradient; η is 1 without annealing.
        """
        weak_view, strong_view = batch.unlabeled
        labeled, strong, weak = forward_together(online, *batch.labeled, strong_view, targets=weak_view)
        weak_BY = weak.logits.detach()
        confidence_B, class_B = weak_BY.softmax(-1).max(-1)
        pseudo = PseudoLabels(class_B, (confidence_B >= self.config.threshold).float())
        target_BY = (weak_BY / self.config.temperature).softmax(-1)

        cost_B = F.cross_entropy(labeled.logits, batch.labels, reduction="none")
        used_B = ((-cost_B.detach()).exp() <= self.signal_threshold(batch.progress)).float()
        loss_labeled = (used_B * cost_B).sum() / used_B.sum().clamp(min=1)
        divergence_B = soft_cross_entropy(target_BY, strong.logits) - entropy(target_BY)
        loss_unlabeled = (pseudo.weight * divergence_B).mean()
        loss = loss_labeled + self.config.unlabeled_weight * loss_unlabeled
        parts = {"loss_labeled": loss_labeled, "loss_unlabeled": loss_unlabeled, "confidence": confidence_B.mean()}
        return StepResult(loss, parts, pseudo)

    def signal_threshold(self, progress: Tensor) -> Tensor:
        """Return η, the largest probability of its label at which a labelled image still counts, 0-d."""
        match self.config.annealing:
            case "none":
                growth = torch.ones_like(progress)
            case "linear":
                growth = progress
            case "log":
                growth = 1 - torch.exp(-5 * progress)
            case "exp":
                growth = torch.exp(5 * (progress - 1))
        return 1 - (1 - growth) * (1 - 1 / self.problem.classes)  # written so that full growth is exactly 1


METHOD = UDA
