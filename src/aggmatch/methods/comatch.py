"""CoMatch: class predictions and embeddings learn together, through a memory and a graph of pseudo labels.

Shape suffixes: B samples, Y classes, K rows of the memory, E width of an embedding.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aggmatch.config import Count, NonNegative, Positive
from aggmatch.functional import PseudoLabels, one_hot, soft_cross_entropy
from aggmatch.methods.alignment import SmoothingSettings, build_alignment
from aggmatch.methods.base import Batch, Method, Problem, StepResult, Views, forward_together
from aggmatch.models import Network
from aggmatch.models.heads import Embedding


@dataclass(frozen=True, kw_only=True)
class Config(SmoothingSettings):
    """Section `method` of CoMatch."""

    temperature: Positive = 0.2
    """t: temperature of similarities between embeddings."""
    edge_threshold: NonNegative = 0.8
    """T_g: least similarity of two pseudo labels that makes an edge of the graph."""
    memory: Count = 2560
    """K: predictions and embeddings of recent images, 5 · (µ + 1) · B in the paper."""
    embedding: Count = 64
    """Width of an embedding."""
    contrast_weight: NonNegative = 1.0
    """λ_ctr: weight of the contrastive loss; 5 on STL-10."""


class CoMatch(Method[Config]):
    """Pseudo labels smoothed by a memory; embeddings of two strong views agree along a graph of pseudo labels."""

    config_type = Config
    reference = "Li et al., CoMatch: Semi-supervised Learning with Contrastive Graph Regularization, 2021"
    views = Views(labeled=("weak",), unlabeled=("weak", "strong", "strong"))

    def __init__(self, config: Config, problem: Problem) -> None:
        super().__init__(config, problem)
        self.align = build_alignment(problem, config.alignment, config.window)
        self.memory = Memory(config.memory, config.embedding, problem.classes)

    def build_head(self) -> Embedding:
        """The embedding of a feature."""
        return Embedding(self.problem.features, self.config.embedding, slope=0.1)

    def step(self, batch: Batch, online: Network, average: Network) -> StepResult:
        """L = mean CE(y, p(α(x))) + λ_cls · mean 1[max q ≥ τ] · CE(q, p(A(u))) + λ_ctr · L_ctr."""
        (labeled_view,), (weak_view, *strong_views) = batch.labeled, batch.unlabeled
        labeled, strong, other, weak = forward_together(online, labeled_view, *strong_views, targets=weak_view)
        with torch.no_grad():
            aligned_BY = self.align(weak.logits.softmax(-1))
            weak_BE, labeled_BE = online.head(weak.feature), online.head(labeled.feature)
            target_BY = self.memory.smooth(aligned_BY, weak_BE, self.config.own_share, self.config.temperature)
            # Aligned but not smoothed: storing smoothed predictions would feed the smoothing back into itself.
            given_BY = one_hot(batch.labels, self.problem.classes).float()
            self.memory.write(torch.cat([aligned_BY, given_BY]), torch.cat([weak_BE, labeled_BE]))
        confidence_B, class_B = target_BY.max(-1)
        pseudo = PseudoLabels(class_B, (confidence_B >= self.config.threshold).float())

        loss_labeled = F.cross_entropy(labeled.logits, batch.labels)
        loss_unlabeled = (pseudo.weight * soft_cross_entropy(target_BY, strong.logits)).mean()
        loss_contrast = self.contrast(target_BY, online.head(strong.feature), online.head(other.feature))
        loss = (
            loss_labeled + self.config.unlabeled_weight * loss_unlabeled + self.config.contrast_weight * loss_contrast
        )
        parts = {
            "loss_labeled": loss_labeled,
            "loss_unlabeled": loss_unlabeled,
            "loss_contrast": loss_contrast,
            "confidence": confidence_B.mean(),
        }
        return StepResult(loss, parts, pseudo)

    def contrast(self, target_BY: Tensor, first_BE: Tensor, second_BE: Tensor) -> Tensor:
        """L_ctr = mean CE(W_b, softmax_j(z_b · z′_j / t)),   W: rows of q_b · q_j, 1 on the diagonal, 0 below T_g."""
        graph_BB = target_BY @ target_BY.T
        graph_BB = graph_BB.masked_fill(graph_BB < self.config.edge_threshold, 0.0)
        graph_BB = torch.where(torch.eye(len(graph_BB), dtype=torch.bool, device=graph_BB.device), 1.0, graph_BB)
        graph_BB = graph_BB / graph_BB.sum(-1, keepdim=True)
        return soft_cross_entropy(graph_BB, first_BE @ second_BE.T / self.config.temperature).mean()


class Memory(nn.Module):
    """The newest predictions and embeddings, in a ring of persistent buffers."""

    probs: Tensor  # (K, Y)
    embedding: Tensor  # (K, E), unit length
    written: Tensor  # 0-d, rows written so far

    def __init__(self, rows: int, width: int, classes: int) -> None:
        super().__init__()
        self.rows = rows
        self.register_buffer("probs", torch.zeros(rows, classes))
        self.register_buffer("embedding", torch.zeros(rows, width))
        self.register_buffer("written", torch.zeros((), dtype=torch.long))

    def smooth(self, probs_BY: Tensor, embedding_BE: Tensor, own_share: float, temperature: float) -> Tensor:
        """α·q + (1 − α)·Σ_k softmax_k(z · z_k / t) p_k, (B, Y); q itself until the memory is full."""
        weight_BK = (embedding_BE @ self.embedding.T / temperature).softmax(-1)
        smoothed_BY = own_share * probs_BY + (1 - own_share) * weight_BK @ self.probs
        return torch.where(self.written >= self.rows, smoothed_BY, probs_BY)

    def write(self, probs_BY: Tensor, embedding_BE: Tensor) -> None:
        """Write a batch over the oldest rows; of a batch larger than the memory, only its last rows."""
        count = min(len(probs_BY), self.rows)
        row_B = (self.written + torch.arange(count, device=self.written.device)) % self.rows
        self.probs[row_B] = probs_BY[-count:].float()
        self.embedding[row_B] = embedding_BE[-count:].float()
        self.written.add_(count)


METHOD = CoMatch
