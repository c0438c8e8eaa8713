"""How AggMatch's queue explains a pseudo label: who was attended to, and who voted.

Shape suffixes: B queries, Q slots, M subsets, S slots of a subset, D features, Y classes.
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from aggmatch.functional import Aggregate
from aggmatch.methods.aggmatch.aggregation import EMPTY, similarity_terms
from aggmatch.methods.base import Attention, Examples

if TYPE_CHECKING:
    from aggmatch.methods.aggmatch.method import AggMatch

SEED = 0
"""Seed of the split into subsets, so that the same queue always gives the same answer."""


class QueueExplainer:
    """The queue of a snapshot, split into subsets once. See `methods.base.Explainer` for the interface."""

    def __init__(self, method: "AggMatch") -> None:
        self.method, self.queue, self.config = method, method.queue, method.config
        self.memory = method.deal(torch.Generator(self.queue.fill.device).manual_seed(SEED))
        self.refines = self.config.refine
        self.subsets = len(self.memory.slot)
        self.voters = int((self.memory.slot != EMPTY).any(1).sum())

    @torch.no_grad()
    def refine(self, feature_BD: Tensor, probs_BY: Tensor) -> Aggregate:
        """Aggregate predictions over the subsets of the queue."""
        return self.method.attend(feature_BD, probs_BY, self.memory)

    @torch.no_grad()
    def attention(self, feature_BD: Tensor, probs_BY: Tensor) -> Attention:
        """The share of every slot in the refined pseudo labels, by each term of the similarity that is in use."""
        terms = similarity_terms(
            F.normalize(feature_BD.float(), dim=-1),
            probs_BY,
            self.queue.feature[:-1],  # without the spare slot
            self.queue.probs[:-1],
            feature_term=self.config.feature_term,
            class_term=self.config.class_term,
            class_weight=self.config.class_weight,
        )
        used = {}
        if self.config.feature_term:
            used["feature term"] = terms.feature
        if self.config.class_term != "none":
            used["class term"] = terms.classes
        scores = {**used, "all": terms.total}
        share = {name: self.shares(score_BQ) for name, score_BQ in scores.items()}
        return Attention(share, {"feature term": terms.feature, "class term": terms.classes})

    def shares(self, score_BQ: Tensor) -> Tensor:
        """Share of every slot in the refined pseudo label, (B, Q): p̄_b = Σ_l share(b, l) · p_l.

        Each subset takes a softmax over its own slots, and p̄ is the mean over the subsets that have any: rows sum to 1,
        or are 0 for an empty queue.
        """
        slot_MS = self.memory.slot[(self.memory.slot != EMPTY).any(1)]
        filled_MS = slot_MS != EMPTY
        score_BMS = score_BQ[:, slot_MS.clamp(min=0)] / self.config.similarity_temperature
        weight_BMS = score_BMS.masked_fill(~filled_MS, -torch.inf).softmax(-1) / max(len(slot_MS), 1)
        share_BQ = torch.zeros_like(score_BQ)
        share_BQ[:, slot_MS[filled_MS]] = weight_BMS[:, filled_MS]
        return share_BQ

    def examples(self) -> Examples:
        """The slots of the queue."""
        queue, classes = self.queue, self.method.problem.classes
        if queue.rings == classes:
            label_Q = torch.arange(classes, device=queue.fill.device).repeat_interleave(queue.slots)
        else:
            label_Q = queue.probs[:-1].argmax(1)
        return Examples(queue.probs[:-1], label_Q, queue.source[:-1], queue.given[:-1], int(queue.fill.sum()))
