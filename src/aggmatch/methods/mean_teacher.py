"""Mean Teacher: the average of the weights predicts on one weak view what the network should predict on another."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from aggmatch.config import Fraction, NonNegative, Settings
from aggmatch.functional import PseudoLabels, linear_ramp
from aggmatch.methods.base import Batch, Method, StepResult, Views
from aggmatch.models import Network, frozen_statistics


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Section `method` of Mean Teacher. The weight average (λ_m, section `optim`) is the teacher."""

    unlabeled_weight: NonNegative = 50.0
    """λ: weight of the unlabelled loss after the ramp."""
    ramp: Fraction = 0.4
    """Share of the steps over which the weight of the unlabelled loss grows linearly from 0 to λ; 0 for no ramp."""


class MeanTeacher(Method[Config]):
    """The averaged network's prediction on one weak view is the target of another view of the same image."""

    # Choice: λ = 50 and the linear ramp are those of the reruns that published tables quote (paper: up to 100, along a
    # Gaussian).

    config_type = Config
    reference = (
        "Tarvainen and Valpola, Mean Teachers Are Better Role Models: Weight-averaged Consistency Targets Improve "
        "Semi-supervised Deep Learning Results, 2017"
    )
    defaults = {"train.unlabeled_ratio": 1}
    views = Views(labeled=("weak",), unlabeled=("weak", "weak"))
    # Choice: as in those reruns, the average has no statistics of its own. As teacher it normalises by its batch, and
    # it is evaluated with the online network's running statistics, which are those of labelled batches.
    average_statistics = "copied"

    def step(self, batch: Batch, online: Network, average: Network) -> StepResult:
        """L = mean CE(y, p(α(x))) + λ · r(t) · mean (p_m(α₁(u)) − p(α₂(u)))² over images and classes, p_m fixed."""
        first, second = batch.unlabeled
        labeled = online(*batch.labeled)
        with frozen_statistics(online), frozen_statistics(average):
            with torch.no_grad():
                target_BY = average(first).logits.softmax(-1)
            probs_BY = online(second).logits.softmax(-1)
        confidence_B, target_B = target_BY.max(-1)

        loss_labeled = F.cross_entropy(labeled.logits, batch.labels)
        loss_unlabeled = F.mse_loss(probs_BY, target_BY)
        ramp = linear_ramp(batch.progress, self.config.ramp)
        loss = loss_labeled + self.config.unlabeled_weight * ramp * loss_unlabeled
        parts = {
            "loss_labeled": loss_labeled.detach(),
            "loss_unlabeled": loss_unlabeled.detach(),
            "confidence": confidence_B.mean(),
            "ramp": ramp,
        }
        return StepResult(loss, parts, PseudoLabels(target_B, torch.ones_like(confidence_B)))


METHOD = MeanTeacher
