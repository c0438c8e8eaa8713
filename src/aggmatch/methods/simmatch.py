"""SimMatch: strong views match weak views both in their classes and in their similarity to the labelled images.

Shape suffixes: B samples, Y classes, K labelled images, E width of an embedding.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from aggmatch.config import Count, Fraction, NonNegative, Positive
from aggmatch.functional import TINY, PseudoLabels, one_hot, soft_cross_entropy
from aggmatch.methods.alignment import SmoothingSettings, build_alignment
from aggmatch.methods.base import Batch, Method, Problem, StepResult, Views, forward_together
from aggmatch.models import Network
from aggmatch.models.heads import Embedding

UNSEEN = -1


@dataclass(frozen=True, kw_only=True)
class Config(SmoothingSettings):
    """Section `method` of SimMatch."""

    temperature: Positive = 0.1
    """t: temperature of similarities to labelled images."""
    embedding: Count = 128
    """Width of an embedding."""
    memory_momentum: Fraction = 0.7
    """Share of its old embedding that a labelled image keeps when it is seen again."""
    instance_weight: NonNegative = 1.0
    """λ_in: weight of the loss between similarities."""


class SimMatch(Method[Config]):
    """Pseudo labels smoothed by similar labelled images; views agree on their similarities to these images too."""

    config_type = Config
    reference = "Zheng et al., SimMatch: Semi-supervised Learning with Similarity Matching, 2022"
    views = Views(labeled=("weak",), unlabeled=("weak", "strong"))

    embedding: Tensor  # (K, E), unit length
    label: Tensor  # (K,), UNSEEN until the image has been in a batch

    def __init__(self, config: Config, problem: Problem) -> None:
        super().__init__(config, problem)
        self.align = build_alignment(problem, config.alignment, config.window)
        self.register_buffer("embedding", torch.zeros(problem.labels, config.embedding))
        self.register_buffer("label", torch.full((problem.labels,), UNSEEN))

    def build_head(self) -> Embedding:
        """The embedding of a feature."""
        return Embedding(self.problem.features, self.config.embedding, slope=0.0)

    def step(self, batch: Batch, online: Network, average: Network) -> StepResult:
        """L = mean CE(y, p(α(x))) + λ_u · mean 1[max p̂ ≥ τ] · CE(p̂, p(A(u))) + λ_in · mean CE(ŵ, s).

        p̂ and L_in need all labelled images in the memory; until each was seen once, p̂ is the prediction and L_in is 0.
        """
        (labeled_view,), (weak_view, strong_view) = batch.labeled, batch.unlabeled
        labeled, strong, weak = forward_together(online, labeled_view, strong_view, targets=weak_view)
        with torch.no_grad():
            ready = (self.label != UNSEEN).all()
            probs_BY = self.align(weak.logits.softmax(-1))
            weight_BK = self.similarity(online.head(weak.feature)).softmax(-1)
            instance_BK, target_BY = self.targets(weight_BK, probs_BY)
            target_BY = torch.where(ready, target_BY, probs_BY)
        confidence_B, class_B = target_BY.max(-1)
        pseudo = PseudoLabels(class_B, (confidence_B >= self.config.threshold).float())

        loss_labeled = F.cross_entropy(labeled.logits, batch.labels)
        loss_unlabeled = (pseudo.weight * soft_cross_entropy(target_BY, strong.logits)).mean()
        loss_instance = ready * soft_cross_entropy(instance_BK, self.similarity(online.head(strong.feature))).mean()
        loss = (
            loss_labeled + self.config.unlabeled_weight * loss_unlabeled + self.config.instance_weight * loss_instance
        )
        with torch.no_grad():
            self.update(batch.labeled_position, online.head(labeled.feature.detach()), batch.labels)
        parts = {
            "loss_labeled": loss_labeled,
            "loss_unlabeled": loss_unlabeled,
            "loss_instance": loss_instance,
            "confidence": confidence_B.mean(),
        }
        return StepResult(loss, parts, pseudo)

    def similarity(self, embedding_BE: Tensor) -> Tensor:
        """z · z_i / t to every labelled image, (B, K)."""
        return embedding_BE @ self.embedding.clone().T / self.config.temperature

    def targets(self, weight_BK: Tensor, probs_BY: Tensor) -> tuple[Tensor, Tensor]:
        """Targets of the similarities, ŵ = Normalize(w · p[ℓ]), (B, K), and of the classes, (B, Y).

        p̂[c] = α·p[c] + (1 − α)·Σ_{i: ℓ_i = c} w_i. The first multiplies and the second mixes; ŵ is computed from
        logarithms, because products may underflow.
        """
        label_K = self.label.clamp(min=0)
        instance_BK = torch.log(weight_BK + TINY) + torch.log(probs_BY[:, label_K] + TINY)
        by_class_BY = weight_BK @ one_hot(label_K, self.problem.classes).float()
        share = self.config.own_share
        return instance_BK.softmax(-1), share * probs_BY + (1 - share) * by_class_BY

    def update(self, position_B: Tensor, embedding_BE: Tensor, labels_B: Tensor) -> None:
        """z_i ← normalize(m·z_i + (1 − m)·z) for the labelled images of a batch; repeated ones are averaged first."""
        count_K = torch.zeros(len(self.label), device=position_B.device).index_add_(
            0, position_B, torch.ones_like(position_B, dtype=torch.float32)
        )
        sum_KE = torch.zeros_like(self.embedding).index_add_(0, position_B, embedding_BE.float())
        mean_KE = sum_KE / count_K.clamp(min=1)[:, None]
        new_KE = torch.lerp(mean_KE, self.embedding, self.config.memory_momentum)
        seen_K1 = (count_K > 0)[:, None]
        self.embedding.copy_(F.normalize(torch.where(seen_K1, new_KE, self.embedding), dim=-1))
        self.label[position_B] = labels_B


METHOD = SimMatch
