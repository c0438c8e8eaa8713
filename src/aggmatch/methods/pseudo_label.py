"""Pseudo-Label: a confident prediction is the target of the same view that it was made on."""

from dataclasses import dataclass

import torch.nn.functional as F

from aggmatch.config import Fraction, NonNegative, Settings
from aggmatch.functional import PseudoLabels, linear_ramp
from aggmatch.methods.base import Batch, Method, StepResult, Views
from aggmatch.models import Network, frozen_statistics


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Section `method` of Pseudo-Label."""

    threshold: Fraction = 0.95
    """τ: a pseudo label is used if its probability is at least this."""
    unlabeled_weight: NonNegative = 1.0
    """λ: weight of the unlabelled loss after the ramp."""
    ramp: Fraction = 0.4
    """Share of the steps over which the weight of the unlabelled loss grows linearly from 0 to λ; 0 for no ramp."""


class PseudoLabel(Method[Config]):
    """Confident predictions on weak views are the labels of the same views."""

    # Choice: Lee's method has no threshold. The threshold and the linear ramp are those of the reruns that published
    # tables quote. Their code multiplies a loss of shape (B,) by a mask of shape (B, 1), which weights every image by
    # the share of confident images. Here each image has its own mask, as the method is described.

    config_type = Config
    reference = (
        "Lee, Pseudo-Label: The Simple and Efficient Semi-Supervised Learning Method for Deep Neural Networks, 2013"
    )
    defaults = {"train.unlabeled_ratio": 1}
    views = Views(labeled=("weak",), unlabeled=("weak",))

    def step(self, batch: Batch, online: Network, average: Network) -> StepResult:
        """L = mean CE(y, p(α(x))) + λ · r(t) · mean 1[max p(α(u)) ≥ τ] · CE(argmax p(α(u)), p(α(u)))."""
        labeled = online(*batch.labeled)
        with frozen_statistics(online):
            unlabeled = online(*batch.unlabeled)
        confidence_B, target_B = unlabeled.logits.detach().softmax(-1).max(-1)
        pseudo = PseudoLabels(target_B, (confidence_B >= self.config.threshold).float())

        loss_labeled = F.cross_entropy(labeled.logits, batch.labels)
        loss_unlabeled = (pseudo.weight * F.cross_entropy(unlabeled.logits, target_B, reduction="none")).mean()
        ramp = linear_ramp(batch.progress, self.config.ramp)
        loss = loss_labeled + self.config.unlabeled_weight * ramp * loss_unlabeled
        parts = {"loss_labeled": loss_labeled, "loss_unlabeled": loss_unlabeled, "confidence": confidence_B.mean()}
        return StepResult(loss, parts | {"ramp": ramp}, pseudo)


METHOD = PseudoLabel
