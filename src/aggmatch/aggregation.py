"""Aggregation of class distributions over subsets of the queue, and the confidence in the result (Sec. IV-B, IV-D).

Shape suffixes: B queries, M subsets, S slots of a subset, D features, Y classes.
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from aggmatch.functional import consensus_confidence, jensen_shannon, one_hot

ClassTerm = Literal["divergence", "distance", "none"]

MIXTURE_VALUES = (2**20, 2**26)
"""Mixture values held at once on a CPU (stay in cache) and on a GPU (few launches)."""


EMPTY = -1
"""In `Memory.slot`, a place of a subset that holds no slot."""


class Memory(NamedTuple):
    """What is attended to: slots, and how they are dealt to subsets."""

    feature: Tensor
    """(Q, D), unit length."""
    probs: Tensor
    """(Q, Y)."""
    slot: Tensor
    """(M, S), the slots of each subset; `EMPTY` where there is none."""


class Aggregate(NamedTuple):
    """Refined pseudo labels and how far the subsets agree on them."""

    probs: Tensor
    """p̄, mean of the subsets' distributions, (B, Y)."""
    vote: Tensor
    """a, share of the subsets that vote for each class, (B, Y)."""
    confidence: Tensor
    """c̄ = exp(Σ a log a), (B,)."""


def similarity(
    feature_BD: Tensor,
    probs_BY: Tensor,
    slot_feature_MSD: Tensor,
    slot_probs_MSY: Tensor,
    *,
    feature_term: bool,
    class_term: ClassTerm,
    class_weight: float,
) -> Tensor:
    """Similarity of every query to every slot, (B, M, S).

    S(b, l) = cos(v_b, v_l) + λ_sim · s(p_b, p_l)          (Eq. 3)

    Choice: the paper adds a Jensen-Shannon *distance* to a similarity, which would prefer unlike predictions; here
    s = −JS, or −√JS for `distance`. See docs/decisions/0002-settled-gaps.md.
    """
    score_BMS = feature_BD.new_zeros(len(feature_BD), *slot_probs_MSY.shape[:2])
    if feature_term:
        score_BMS = torch.einsum("bd,msd->bms", F.normalize(feature_BD, dim=-1), slot_feature_MSD)
    if class_term != "none" and class_weight:
        # A few subsets at a time: the mixtures of all of them, B×M×S×Y values, can take gigabytes.
        limit = MIXTURE_VALUES[feature_BD.device.type == "cuda"]
        subsets = max(1, limit // (len(probs_BY) * slot_probs_MSY[0].numel()))
        query_B11Y = probs_BY[:, None, None]
        js_BMS = torch.cat(
            [jensen_shannon(query_B11Y, slots_MSY) for slots_MSY in slot_probs_MSY.split(subsets)], dim=1
        )
        score_BMS = score_BMS - class_weight * (js_BMS.sqrt() if class_term == "distance" else js_BMS)
    return score_BMS


@torch.no_grad()
def aggregate(
    feature_BD: Tensor,
    probs_BY: Tensor,
    memory: Memory,
    *,
    temperature: float,
    feature_term: bool = True,
    class_term: ClassTerm = "divergence",
    class_weight: float = 0.5,
) -> Aggregate:
    """Attend to every subset apart, average the answers, and measure their consensus.

    p̄_b^m = Σ_l softmax_l(S(b, l)/τ_sim) p_l over the slots of subset m          (Eq. 2)
    p̄_b = mean_m p̄_b^m,   a_b = mean_m onehot(argmax p̄_b^m),   c̄_b = exp(Σ a_b log a_b)

    A subset without a filled slot neither votes nor enters the mean; with no voter at all, p̄ is the query's own
    distribution and the confidence 0. Works in float32; carries no gradient.
    """
    feature_BD, probs_BY = feature_BD.float(), probs_BY.float()
    filled_MS = memory.slot != EMPTY
    slot_MS = memory.slot.clamp(min=0)
    slot_feature_MSD, slot_probs_MSY = memory.feature[slot_MS].float(), memory.probs[slot_MS].float()
    score_BMS = similarity(
        feature_BD,
        probs_BY,
        slot_feature_MSD,
        slot_probs_MSY,
        feature_term=feature_term,
        class_term=class_term,
        class_weight=class_weight,
    )
    voter_M = filled_MS.any(1)
    # An empty subset is softmaxed over its unfilled places, which keeps it finite, and then left out.
    unfilled_MS = ~filled_MS & voter_M[:, None]
    weight_BMS = (score_BMS / temperature).masked_fill(unfilled_MS, -torch.inf).softmax(-1)
    hypothesis_BMY = torch.einsum("bms,msy->bmy", weight_BMS, slot_probs_MSY)

    voters = voter_M.sum()
    voter_M1 = voter_M[:, None].float()
    ballot_BMY = one_hot(hypothesis_BMY.argmax(-1), probs_BY.shape[-1])
    mean_BY = (hypothesis_BMY * voter_M1).sum(1) / voters.clamp(min=1)
    vote_BY = (ballot_BMY * voter_M1).sum(1) / voters.clamp(min=1)
    return Aggregate(
        probs=torch.where(voters > 0, mean_BY, probs_BY),
        vote=vote_BY,
        confidence=torch.where(voters > 0, consensus_confidence(vote_BY), 0.0),
    )
