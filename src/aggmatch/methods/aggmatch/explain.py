"""How AggMatch's queue explains a pseudo label: the slots that it attends to, and the votes of the subsets.

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
    """Explains pseudo labels by the queue of a snapshot, split into subsets once. See `methods.base.Explainer`."""

    def __init__(self, method: "AggMatch") -> None:
        self.method, self.queue, self.config = method, method.queue, method.config
        self.memory = method.split(torch.Generator(self.queue.fill.device).manual_seed(SEED))
        self.refines = self.config.refine
        self.subsets = len(self.memory.slot)
        self.voters = int((self.memory.slot != EMPTY).any(1).sum())

    @torch.no_grad()
    def refine(self, feature_BD: Tensor, probs_BY: Tensor) -> Aggregate:
        """Return predictions aggregated over the subsets of the queue."""
        return self.method.attend(feature_BD, probs_BY, self.memory)

    @torch.no_grad()
    def attention(self, feature_BD: Tensor, probs_BY: Tensor) -> Attention:
        """Return the share of each slot in the refined predictions, by each term that is in use and by all terms."""
        query_BD = F.normalize(feature_BD.float(), dim=-1)
        feature_QD, probs_QY = self.queue.feature[:-1], self.queue.probs[:-1]  # without the spare slot
        similarity = similarity_terms(query_BD, probs_BY, feature_QD, probs_QY, **self.method.terms)
        term = {"feature term": similarity.feature, "class term": similarity.classes}
        used = {"feature term": self.config.feature_term, "class term": self.config.class_term != "none"}
        scores = {name: term[name] for name in term if used[name]} | {"all": similarity.total}
        return Attention({name: self.shares(score_BQ) for name, score_BQ in scores.items()}, term)

    def shares(self, score_BQ: Tensor) -> Tensor:
        """Return the share of each slot in the refined prediction, (B, Q): p̄_b = Σ_l share(b, l) · p_l.

        Each subset takes a softmax over its own slots, and p̄ is the mean over the subsets that have slots. So rows sum
        to 1, or are 0 for an empty queue.
        """
        slot_MS = self.memory.slot[(self.memory.slot != EMPTY).any(1)]
        filled_MS = slot_MS != EMPTY
        score_BMS = score_BQ[:, slot_MS.clamp(min=0)] / self.config.similarity_temperature
        weight_BMS = score_BMS.masked_fill(~filled_MS, -torch.inf).softmax(-1) / max(len(slot_MS), 1)
        share_BQ = torch.zeros_like(score_BQ)
        share_BQ[:, slot_MS[filled_MS]] = weight_BMS[:, filled_MS]
        return share_BQ

    def examples(self) -> Examples:
        """Return the slots of the queue. The class of a slot is that of its ring, or else its most probable class."""
        queue, classes = self.queue, self.method.problem.classes
        if queue.rings == classes:
            label_Q = torch.arange(classes, device=queue.fill.device).repeat_interleave(queue.slots)
        else:
            label_Q = queue.probs[:-1].argmax(1)
        return Examples(queue.probs[:-1], label_Q, queue.source[:-1], queue.given[:-1], int(queue.fill.sum()))
