"""Π-Model: two weak views of an image should get the same prediction."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from aggmatch.config import Fraction, NonNegative, Settings
from aggmatch.functional import PseudoLabels, linear_ramp
from aggmatch.methods.base import Batch, Method, StepResult, Views
from aggmatch.models import Network, frozen_statistics


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Section `method` of the Π-Model."""

    unlabeled_weight: NonNegative = 10.0
    """λ: weight of the unlabelled loss after the ramp."""
    ramp: Fraction = 0.4
    """Share of the steps over which the weight of the unlabelled loss grows linearly from 0 to λ; 0 for no ramp."""


class PiModel(Method[Config]):
    """The prediction on one weak view is the target of another view of the same image."""

    # Choice: the paper sends gradients through both views and ramps along a Gaussian. One view without gradient, the
    # linear ramp and λ = 10 are those of the reruns that published tables quote.

    config_type = Config
    reference = "Laine and Aila, Temporal Ensembling for Semi-Supervised Learning, 2017"
    defaults = {"train.unlabeled_ratio": 1}
    views = Views(labeled=("weak",), unlabeled=("weak", "weak"))

    def step(self, batch: Batch, online: Network, average: Network) -> StepResult:
        """L = mean CE(y, p(α(x))) + λ · r(t) · mean (p(α₁(u)) − p(α₂(u)))² over images and classes, p(α₁(u)) fixed."""
        return consistency_step(self.config, batch, online, teacher=online)


def consistency_step(config: Config, batch: Batch, online: Network, teacher: Network) -> StepResult:
    """Return the loss of the labels plus the squared difference from the teacher's prediction on another view."""
    first, second = batch.unlabeled
    labeled = online(*batch.labeled)
    with frozen_statistics(online), frozen_statistics(teacher):
        with torch.no_grad():
            target_BY = teacher(first).logits.softmax(-1)
        probs_BY = online(second).logits.softmax(-1)
    confidence_B, target_B = target_BY.max(-1)

    loss_labeled = F.cross_entropy(labeled.logits, batch.labels)
    loss_unlabeled = F.mse_loss(probs_BY, target_BY)
    ramp = linear_ramp(batch.progress, config.ramp)
    loss = loss_labeled + config.unlabeled_weight * ramp * loss_unlabeled
    parts = {"loss_labeled": loss_labeled, "loss_unlabeled": loss_unlabeled, "confidence": confidence_B.mean()}
    return StepResult(loss, parts | {"ramp": ramp}, PseudoLabels(target_B, torch.ones_like(confidence_B)))


METHOD = PiModel
