"""The class-balanced, confidence-aware queue of AggMatch (Sec. IV-C), and how it explains pseudo labels.

Shape suffixes: B candidates, R rings (the classes), L slots of a ring, Q = R·L slots, D features, Y classes, M subsets,
S slots of a subset. All shapes are static and nothing is read on the host, so that a step can be captured in a graph.
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aggmatch.functional import Aggregate, one_hot
from aggmatch.methods.aggmatch.aggregation import EMPTY, Memory, similarity_terms
from aggmatch.methods.base import Attention, Examples

if TYPE_CHECKING:
    from aggmatch.methods.aggmatch.method import AggMatch


class ClassBalancedQueue(nn.Module):
    """A queue of `rings` rings with `slots` slots each. A slot holds a unit feature, a class distribution, its source.

    features: D. classes: Y. dtype: of the features. All state is in persistent buffers, so a checkpoint of the module
    holds the queue. Row Q is a spare slot: rejected candidates are written there, which costs less than a shape that
    depends on the data. It never counts as filled.

    Example: `ClassBalancedQueue(rings=10, slots=2048, features=128, classes=10)`.
    """

    feature: Tensor  # (Q+1, D), unit length, of the given type
    probs: Tensor  # (Q+1, Y)
    source: Tensor  # (Q+1,) position of the image in the training set
    given: Tensor  # (Q+1,) whether the image has a given label
    position: Tensor  # (R,) next slot to write
    fill: Tensor  # (R,) number of filled slots

    def __init__(
        self, *, rings: int, slots: int, features: int, classes: int, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.rings, self.slots = rings, slots
        self.register_buffer("feature", torch.zeros(rings * slots + 1, features, dtype=dtype))
        self.register_buffer("probs", torch.zeros(rings * slots + 1, classes))
        self.register_buffer("source", torch.full((rings * slots + 1,), -1))
        self.register_buffer("given", torch.zeros(rings * slots + 1, dtype=torch.bool))
        self.register_buffer("position", torch.zeros(rings, dtype=torch.long))
        self.register_buffer("fill", torch.zeros(rings, dtype=torch.long))

    @torch.no_grad()
    def enqueue(
        self, feature_BD: Tensor, probs_BY: Tensor, ring_B: Tensor, accept_B: Tensor, source_B: Tensor, given_B: Tensor
    ) -> None:
        """Write the candidates with `accept_B` to their rings, in order, over the oldest slots.

        If a ring gets more than L candidates at once, it keeps the last L. Features need not have unit length.
        """
        wanted_RB = one_hot(ring_B, self.rings).T.contiguous() & accept_B  # a scan is fast along the last dimension
        count_R = wanted_RB.sum(1)
        rank_B = (wanted_RB.cumsum(1) - 1).gather(0, ring_B[None]).squeeze(0)
        keep_B = accept_B & (rank_B >= count_R[ring_B] - self.slots)
        slot_B = ring_B * self.slots + (self.position[ring_B] + rank_B) % self.slots
        slot_B = torch.where(keep_B, slot_B, self.rings * self.slots)

        self.feature[slot_B] = F.normalize(feature_BD.float(), dim=-1).to(self.feature.dtype)
        self.probs[slot_B] = probs_BY.to(self.probs.dtype)
        self.source[slot_B] = source_B
        self.given[slot_B] = given_B
        self.position.copy_((self.position + count_R) % self.slots)
        self.fill.copy_((self.fill + count_R).clamp(max=self.slots))

    def split(self, subsets: int, generator: torch.Generator, *, images: int = 0) -> Memory:
        """Split the filled slots at random into M = `subsets` disjoint subsets of equal size.

        Each ring is shuffled and cut into M runs whose lengths differ by at most one slot. So a subset is
        class-balanced if the rings are equally full. images: number of training images; if it is given, slots with the
        same image stay together in the shuffle, and so in one subset, except where a run is cut.
        """
        device, ring_R1 = self.fill.device, torch.arange(self.rings, device=self.fill.device)[:, None]
        filled_RL = torch.arange(self.slots, device=device) < self.fill[:, None]
        if images:
            key_RL = torch.rand(images, generator=generator, device=device)[self.source[:-1]].view_as(filled_RL)
        else:
            key_RL = torch.rand(self.rings, self.slots, generator=generator, device=device)
        order_RL = key_RL.masked_fill(~filled_RL, 2.0).argsort(1)  # filled slots first, in random order

        # Slot r of the F filled ones goes to run m = ⌊rM/F⌋, which starts at ⌈mF/M⌉.
        rank_L, fill_R1 = torch.arange(self.slots, device=device), self.fill[:, None].clamp(min=1)
        subset_RL = rank_L * subsets // fill_R1
        place_RL = rank_L - (subset_RL * fill_R1 + subsets - 1) // subsets
        longest = -(-self.slots // subsets)  # run of one ring in one subset
        size = self.rings * longest
        index_RL = torch.where(filled_RL, subset_RL * size + ring_R1 * longest + place_RL, subsets * size)
        slot_P = torch.full((subsets * size + 1,), EMPTY, device=device)
        slot_P[index_RL] = order_RL + ring_R1 * self.slots  # empty slots all go to the spare last place
        return Memory(self.feature, self.probs, slot_P[:-1].view(subsets, size))


# Explanations --------------------------------------------------------------------------------------------------------

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
