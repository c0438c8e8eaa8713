"""PAWS: views of an image learn to resemble the same labelled images, whose labels are the prediction."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aggmatch.config import Count, Fraction, Natural, NonNegative, Positive, Settings
from aggmatch.functional import PseudoLabels, entropy, one_hot, sharpen
from aggmatch.methods.base import Batch, Method, Problem, StepResult, Views
from aggmatch.models import Network, frozen_statistics, images_at_once
from aggmatch.models.heads import Projection

TINY = torch.finfo(torch.float32).tiny
"""Smallest probability whose logarithm is taken."""


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Section `method` of PAWS. Section `views.crops` sets the crops and colours of its views."""

    support: Count | None = None
    """Labelled images of each class in a step; null for `train.batch` labelled images in all. A class with fewer labels
    gives all of them, or `train.batch` divided by the number of classes if that is more: images then repeat, with
    crops of their own."""
    support_views: Count = 2
    """Large crops of each labelled image of a batch; all of them together are the support set."""
    small_crops: Natural = 6
    """Small crops of each unlabelled image, in addition to its two large ones."""
    temperature: Positive = 0.1
    """τ: temperature of the cosine in soft nearest neighbours, in training and in prediction."""
    sharpening: Positive = 0.25
    """T: temperature that sharpens targets, and the predictions whose mean is regularised."""
    label_smoothing: Fraction = 0.1
    """Share of a support label that is spread evenly over all classes."""
    least_target: Fraction = 1e-4
    """Probabilities of a target below this count as 0."""
    entropy_weight: NonNegative = 1.0
    """Weight of the entropy of the mean prediction (me-max), which keeps all classes in use."""
    projection: Count = 128
    """Width of the embedding."""


class PAWS(Method[Config]):
    """Views of an image learn to have the same labelled neighbours, which also predict, instead of a classifier."""

    config_type = Config
    reference = (
        "Assran et al., Semi-Supervised Learning of Visual Features by Non-Parametrically Predicting View Assignments "
        "with Support Samples, 2021"
    )
    # The authors' settings for CIFAR-10; docs/decisions/0007-methods-and-their-official-code.md says what differs.
    defaults = {
        "method.support": 64,
        "train.batch": 256,
        "train.unlabeled_ratio": 1,
        "views.crops.hue": 0.1,
        "optim.optimizer": "lars",
        "optim.lr": 3.2,
        "optim.final": 0.01,
        "optim.warmup": 1 / 60,  # ten of their 600 epochs
        "optim.warmup_from": 0.25,
        "optim.nesterov": False,
        "optim.weight_decay": 1e-6,
    }
    balanced = True
    predictor = ("support", "support_labels")
    watched = "loss_unlabeled"
    untrained = ("classifier",)

    support: Tensor
    support_labels: Tensor

    def __init__(self, config: Config, problem: Problem) -> None:
        super().__init__(config, problem)
        self.views = Views(
            labeled=("large_crop",) * config.support_views,
            unlabeled=("large_crop",) * 2 + ("small_crop",) * config.small_crops,
        )
        self.register_buffer("support", torch.zeros(problem.labels, config.projection))
        self.register_buffer("support_labels", torch.zeros(problem.labels, dtype=torch.int64))

    @classmethod
    def labeled_batch(cls, config: Config, batch: int, counts: Sequence[int]) -> int:
        """Return the number of labelled images in the support."""
        if config.support is None:
            return batch
        return min(config.support, max(min(counts), batch // len(counts))) * len(counts)

    def build_head(self) -> nn.Module:
        """Return the projection to the space in which images are compared."""
        return Projection(self.problem.features, self.config.projection)

    def step(self, batch: Batch, online: Network, average: Network) -> StepResult:
        """L = mean H(t, π(u)) − λ·H(mean sharpen(π(u))) over all views u of all unlabelled images.

        π(u) = softmax(cos(z(u), z(S))/τ)·Y_S with the labelled crops S of the batch. The target t of a large view is
        sharpen(π) of the other large view of its image; that of a small view is the mean of both. t has no gradient.
        """
        config = self.config
        large_ED = embed(online, *batch.labeled, *batch.unlabeled[:2])
        support_SD, view_VD = large_ED.tensor_split([config.support_views * len(batch.labels)])
        if config.small_crops:
            # Choice: small crops do not update the running statistics, because predictions are for full-size images.
            with frozen_statistics(online):
                view_VD = torch.cat([view_VD, embed(online, *batch.unlabeled[2:])])
        label_SY = smooth(one_hot(batch.labels, self.problem.classes), config.label_smoothing)
        label_SY = label_SY.repeat(config.support_views, 1)
        probs_VY = soft_neighbors(view_VD, support_SD, label_SY, config.temperature).clamp(min=TINY)

        sharp_VY = sharpen(probs_VY, config.sharpening)
        with torch.no_grad():
            first_BY, second_BY = sharp_VY[: 2 * len(batch.unlabeled_index)].chunk(2)
            both_BY = (first_BY + second_BY) / 2
            target_VY = torch.cat([second_BY, first_BY, *[both_BY] * config.small_crops])
            target_VY = target_VY.where(target_VY >= config.least_target, 0)
            confidence_B, class_B = both_BY.max(-1)

        loss_unlabeled = -(target_VY * probs_VY.log()).sum(-1).mean()
        mean_entropy = entropy(sharp_VY.mean(0))
        loss = loss_unlabeled - config.entropy_weight * mean_entropy
        parts = {"loss_unlabeled": loss_unlabeled, "mean_entropy": mean_entropy, "confidence": confidence_B.mean()}
        return StepResult(loss, parts, PseudoLabels(class_B, torch.ones_like(confidence_B)))

    @torch.no_grad()
    def prepare(self, network: Network, labeled: Tensor, labels: Tensor) -> None:
        """Store the embeddings of all labelled images."""
        self.support.copy_(
            torch.cat([embed(network, images) for images in labeled.split(images_at_once(labeled.shape[-1]))])
        )
        self.support_labels.copy_(labels)

    def predict(self, network: Network, images: Tensor) -> Tensor:
        """Return class probabilities by soft nearest neighbours among all labelled images, (B, Y)."""
        label_SY = one_hot(self.support_labels, self.problem.classes).float()
        return soft_neighbors(embed(network, images), self.support, label_SY, self.config.temperature)


def embed(network: Network, *batches: Tensor) -> Tensor:
    """Return the embeddings of batches with images of one size, (ΣB, D). BatchNorm normalises them together."""
    return network.head(network(torch.cat(batches)).feature)


def soft_neighbors(query_BD: Tensor, support_SD: Tensor, label_SY: Tensor, temperature: float) -> Tensor:
    """Return the labels of the support, weighted by similarity to each query, (B, Y).

    π(q) = softmax(cos(q, S)/τ)·Y_S
    """
    cosine_BS = F.normalize(query_BD, dim=-1) @ F.normalize(support_SD, dim=-1).T
    return torch.softmax(cosine_BS / temperature, -1) @ label_SY


def smooth(label_SY: Tensor, share: float) -> Tensor:
    """Return labels with a share spread evenly over all classes."""
    return (1 - share) * label_SY + share / label_SY.shape[-1]


METHOD = PAWS
