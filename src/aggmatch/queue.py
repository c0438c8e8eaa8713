"""The class-balanced, confidence-aware queue of AggMatch (Sec. IV-C), one ring of slots per class.

Shape suffixes: B candidates, R rings (the classes), L slots of a ring, Q = R·L slots, D features, Y classes, M subsets,
S slots of a subset. All shapes are static and nothing is read back to the host, so a step can be captured in a graph.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aggmatch.aggregation import EMPTY, Memory
from aggmatch.functional import one_hot


class ClassBalancedQueue(nn.Module):
    """`rings` rings of `slots` slots; each slot holds a unit feature, a class distribution and where it came from.

    Everything is a persistent buffer: a checkpoint of the module is a checkpoint of the queue. Row Q is a spare slot:
    rejected candidates are written there, which costs less than a data-dependent shape, and nothing reads it as filled.
    """

    feature: Tensor  # (Q+1, D), unit length
    probs: Tensor  # (Q+1, Y)
    source: Tensor  # (Q+1,) index of the image in the training set
    given: Tensor  # (Q+1,) whether the image carries a given label
    position: Tensor  # (R,) next slot to write
    fill: Tensor  # (R,) number of filled slots

    def __init__(self, *, rings: int, slots: int, features: int, classes: int) -> None:
        super().__init__()
        self.rings, self.slots = rings, slots
        self.register_buffer("feature", torch.zeros(rings * slots + 1, features))
        self.register_buffer("probs", torch.zeros(rings * slots + 1, classes))
        self.register_buffer("source", torch.full((rings * slots + 1,), -1))
        self.register_buffer("given", torch.zeros(rings * slots + 1, dtype=torch.bool))
        self.register_buffer("position", torch.zeros(rings, dtype=torch.long))
        self.register_buffer("fill", torch.zeros(rings, dtype=torch.long))

    @torch.no_grad()
    def enqueue(
        self, feature_BD: Tensor, probs_BY: Tensor, ring_B: Tensor, accept_B: Tensor, source_B: Tensor, given_B: Tensor
    ) -> None:
        """Write the accepted candidates to their rings in order, the oldest out first.

        Where a ring gets more than L candidates at once, the newest L stay.
        """
        wanted_RB = one_hot(ring_B, self.rings).T.contiguous() & accept_B  # a scan is quick along the last dimension
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

    def split(self, subsets: int, generator: torch.Generator) -> Memory:
        """Deal the filled slots of every ring at random and evenly to `subsets` disjoint subsets.

        Every ring is shuffled and its r-th filled slot goes to subset r mod M, so that a subset is class-balanced as
        long as the rings are equally full.
        """
        device = self.fill.device
        key_RL = torch.rand(self.rings, self.slots, generator=generator, device=device)
        filled_RL = torch.arange(self.slots, device=device) < self.fill[:, None]
        order_RL = key_RL.masked_fill(~filled_RL, 2.0).argsort(1)  # filled slots first, in random order
        slot_RL = order_RL + torch.arange(self.rings, device=device)[:, None] * self.slots
        slot_RL = torch.where(filled_RL, slot_RL, EMPTY)  # sorted, the first `fill` count
        hand = -(-self.slots // subsets)  # slots of one ring in one subset
        slot_RL = F.pad(slot_RL, (0, hand * subsets - self.slots), value=EMPTY)
        slot_MS = slot_RL.view(self.rings, hand, subsets).permute(2, 0, 1).reshape(subsets, self.rings * hand)
        return Memory(self.feature, self.probs, slot_MS)
