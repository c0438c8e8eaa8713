"""MixMatch: labelled images, and unlabelled images with guessed labels, are mixed with each other."""

from dataclasses import dataclass

import torch
from torch import Tensor

from aggmatch.config import Fraction, NonNegative, Positive, Settings
from aggmatch.functional import (
    PseudoLabels,
    beta_shares,
    interleave,
    linear_ramp,
    mixup,
    one_hot,
    sharpen,
    soft_cross_entropy,
)
from aggmatch.methods.base import Batch, Method, StepResult, Views
from aggmatch.models import Network, frozen_statistics


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Section `method` of MixMatch."""

    sharpening: Positive = 0.5
    """T: temperature that sharpens a guessed label."""
    alpha: Positive = 0.75
    """α: parameter of the Beta distribution of the mixing shares. A small α mixes little."""
    unlabeled_weight: NonNegative = 75.0
    """w: weight of the unlabelled loss after the ramp; 75 on CIFAR-10, 250 on SVHN, 150 on CIFAR-100."""
    ramp: Fraction = 1 / 64
    """Share of the steps over which the weight of the unlabelled loss grows linearly from 0."""


class MixMatch(Method[Config]):
    """Mixtures of labelled and unlabelled images learn the same mixtures of given and guessed labels."""

    config_type = Config
    reference = "Berthelot et al., MixMatch: A Holistic Approach to Semi-Supervised Learning, 2019"
    defaults = {"train.unlabeled_ratio": 1}
    views = Views(labeled=("weak",), unlabeled=("weak", "weak"))

    def step(self, batch: Batch, online: Network, average: Network) -> StepResult:
        """L = mean CE(y′, p(x′)) + w · ramp · mean (q′ − p(u′))²,   the second mean over samples and classes.

        q = sharpen(½ p(α₁(u)) + ½ p(α₂(u)));   (x′, y′) and (u′, q′) are parts of
        λ·w + (1 − λ)·permuted w,   w = [(α(x), y), (α₁(u), q), (α₂(u), q)],   λ = max(b, 1 − b),   b ~ Beta(α, α)
        """
        with torch.no_grad():
            probs_BY = self.guess(batch.unlabeled, online)
            guessed_BY = sharpen(probs_BY, self.config.sharpening)
            given_BY = one_hot(batch.labels, self.problem.classes).float()
            images = torch.cat([*batch.labeled, *batch.unlabeled]).float()
            target_BY = torch.cat([given_BY, guessed_BY, guessed_BY])
            partner_B, share_B = self.draw(len(images), batch.generator)
            images, target_BY = mixup(images, partner_B, share_B), mixup(target_BY, partner_B, share_B)

        logits_BY = forward_interleaved(online, images, len(batch.labels))
        labeled, unlabeled = slice(len(batch.labels)), slice(len(batch.labels), None)
        loss_labeled = soft_cross_entropy(target_BY[labeled], logits_BY[labeled]).mean()
        loss_unlabeled = (target_BY[unlabeled] - logits_BY[unlabeled].softmax(-1)).square().mean()
        weight = self.config.unlabeled_weight * linear_ramp(batch.progress, self.config.ramp)
        loss = loss_labeled + weight * loss_unlabeled
        confidence_B, class_B = probs_BY.max(-1)
        parts = {"loss_labeled": loss_labeled, "loss_unlabeled": loss_unlabeled, "confidence": confidence_B.mean()}
        return StepResult(loss, parts, PseudoLabels(class_B, torch.ones_like(confidence_B)))

    def guess(self, views: tuple[Tensor, ...], online: Network) -> Tensor:
        """Return the mean prediction over the views, (µB, Y). BatchNorm normalises each view separately."""
        with frozen_statistics(online):
            return torch.stack([online(view).logits.softmax(-1) for view in views]).mean(0)

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return for each image its partner, by a permutation, and its own share λ of the mixture, both (count,)."""
        partner_B = torch.rand(count, generator=generator, device=generator.device).argsort()
        return partner_B, beta_shares(count, self.config.alpha, generator)


def forward_interleaved(online: Network, images: Tensor, size: int) -> Tensor:
    """Return the logits of images, (B, Y), computed in batches of `size` that each hold images of all kinds.

    BatchNorm normalises each batch separately. Only the first batch updates the running statistics.
    """
    first, *others = interleave(images.split(size))
    logits = [online(first).logits]
    with frozen_statistics(online):
        logits += [online(other).logits for other in others]
    return torch.cat(interleave(logits))


METHOD = MixMatch
