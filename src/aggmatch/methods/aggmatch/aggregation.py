"""Aggregation of class distributions over subsets of the queue, and the confidence in the result (Sec. IV-B, IV-D).

`aggregate` is the function to call; on CUDA it stands on a fused kernel, elsewhere on the plain form below, which is
the reference. Shape suffixes: B queries, Q slots, M subsets, S slots of a subset, D features, Y classes.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from aggmatch.functional import TINY, Aggregate, consensus_confidence, entropy, one_hot
from aggmatch.kernels import triton_works

ClassTerm = Literal["divergence", "distance", "none"]

PAIRS = (2**16, 2**26)
"""Pairs of a query and a slot that are compared at once, on a CPU (they stay in cache) and on a GPU (few launches)."""


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


class Similarity(NamedTuple):
    """The two terms of S(b, l) = cos(v_b, v_l) + λ_sim · s(p_b, p_l) (Eq. 3); zero where a term is switched off."""

    feature: Tensor
    """cos(v_b, v_l), (B, Q)."""
    classes: Tensor
    """λ_sim · s(p_b, p_l), never above 0, (B, Q)."""

    @property
    def total(self) -> Tensor:
        """S, (B, Q)."""
        return self.feature + self.classes


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
    S(b, l) = cos(v_b, v_l) + λ_sim · s(p_b, p_l)                                  (Eq. 3)
    p̄_b = mean_m p̄_b^m,   a_b = mean_m onehot(argmax p̄_b^m),   c̄_b = exp(Σ a_b log a_b)

    Choice: the paper adds a Jensen-Shannon *distance* to a similarity, which would prefer unlike predictions; here
    s = −JS, or −√JS for `distance`. See docs/decisions/0002-settled-gaps.md.

    A subset without a filled slot neither votes nor enters the mean; with no voter at all, p̄ is the query's own
    distribution and the confidence 0. Works in float32; carries no gradient.
    """
    probs_BY = probs_BY.float()
    sums = fused_sums(probs_BY.shape[1], feature_BD.device) if feature_BD.is_cuda else reference_sums
    sum_BY, vote_BY = sums(
        F.normalize(feature_BD.float(), dim=-1).to(memory.feature.dtype),
        probs_BY,
        memory.feature,
        memory.probs,
        memory.slot,
        temperature=temperature,
        feature_term=feature_term,
        class_term=class_term,
        class_weight=class_weight,
    )
    voters = (memory.slot != EMPTY).any(1).sum()
    vote_BY = vote_BY / voters.clamp(min=1)
    return Aggregate(
        probs=torch.where(voters > 0, sum_BY / voters.clamp(min=1), probs_BY),
        vote=vote_BY,
        confidence=torch.where(voters > 0, consensus_confidence(vote_BY), 0.0),
    )


def reference_sums(
    query_BD: Tensor,
    query_probs_BY: Tensor,
    feature_QD: Tensor,
    probs_QY: Tensor,
    slot_MS: Tensor,
    *,
    temperature: float,
    feature_term: bool,
    class_term: ClassTerm,
    class_weight: float,
) -> tuple[Tensor, Tensor]:
    """Sums over the subsets of their hypotheses p̄^m and of their one-hot ballots, each (B, Y).

    query_BD and feature_QD: unit length; slot_MS: `EMPTY` where a subset has no slot.
    """
    filled_MS = slot_MS != EMPTY
    slot_MS = slot_MS.clamp(min=0)
    slot_probs_MSY = probs_QY[slot_MS].float()
    terms = similarity_terms(
        query_BD,
        query_probs_BY,
        feature_QD[slot_MS].flatten(0, 1),
        slot_probs_MSY.flatten(0, 1),
        feature_term=feature_term,
        class_term=class_term,
        class_weight=class_weight,
    )
    score_BMS = terms.total.unflatten(1, slot_MS.shape)

    voter_M = filled_MS.any(1)
    # An empty subset is softmaxed over its unfilled places, which keeps it finite, and then left out.
    unfilled_MS = ~filled_MS & voter_M[:, None]
    weight_BMS = (score_BMS / temperature).masked_fill(unfilled_MS, -torch.inf).softmax(-1)
    hypothesis_BMY = torch.einsum("bms,msy->bmy", weight_BMS, slot_probs_MSY)
    ballot_BMY = one_hot(hypothesis_BMY.argmax(-1), probs_QY.shape[-1])
    voter_M1 = voter_M[:, None].float()
    return (hypothesis_BMY * voter_M1).sum(1), (ballot_BMY * voter_M1).sum(1)


def similarity_terms(
    query_BD: Tensor,
    query_probs_BY: Tensor,
    feature_QD: Tensor,
    probs_QY: Tensor,
    *,
    feature_term: bool,
    class_term: ClassTerm,
    class_weight: float,
) -> Similarity:
    """Similarity of every query to every slot, term by term, in float32 (Eq. 3).

    query_BD and feature_QD: unit length.
    """
    feature_BQ = torch.zeros(len(query_BD), len(feature_QD), device=query_BD.device)
    classes_BQ = torch.zeros_like(feature_BQ)
    if feature_term:
        feature_BQ = query_BD.float() @ feature_QD.float().T
    if class_term != "none" and class_weight:
        js_BQ = pairwise_jensen_shannon(query_probs_BY.float(), probs_QY.float())
        classes_BQ = -class_weight * (js_BQ.sqrt() if class_term == "distance" else js_BQ)
    return Similarity(feature_BQ, classes_BQ)


def pairwise_jensen_shannon(query_BY: Tensor, slots_QY: Tensor) -> Tensor:
    """Jensen-Shannon divergence in nats of every query to every slot, (B, Q).

    JS(p‖q) = log 2 − ½ Σ_y ((p+q) log(p+q) − p log p − q log q)

    Class by class and a few queries at a time, so that the pairs stay in cache and B×Q×Y values never exist.
    """
    slot_YQ = slots_QY.T.contiguous()
    step = max(1, PAIRS[query_BY.is_cuda] // slot_YQ.shape[1])
    mixed_BQ = torch.cat([mixture_sums(block_BY, slot_YQ) for block_BY in query_BY.split(step)])
    own_BQ = entropy(query_BY)[:, None] + entropy(slots_QY)
    return (math.log(2) - (mixed_BQ + own_BQ) / 2).clamp_(0, math.log(2))


def mixture_sums(query_BY: Tensor, slot_YQ: Tensor) -> Tensor:
    """Σ_y (p+q) log(p+q) of every pair, (B, Q)."""
    total_BQ = query_BY.new_zeros(len(query_BY), slot_YQ.shape[1])
    both_BQ, log_BQ = torch.empty_like(total_BQ), torch.empty_like(total_BQ)
    for query_B, slot_Q in zip((query_BY + TINY).unbind(1), slot_YQ, strict=True):
        torch.add(query_B[:, None], slot_Q, out=both_BQ)
        total_BQ.addcmul_(both_BQ, torch.log(both_BQ, out=log_BQ))
    return total_BQ


@cache
def fused_sums(classes: int, device: torch.device) -> Callable[..., tuple[Tensor, Tensor]]:
    """The Triton kernel with the interface of `reference_sums`, or that, without Triton or with too many classes."""
    if not triton_works():
        return reference_sums
    from aggmatch.kernels.aggregate import aggregate_sums, most_classes

    return aggregate_sums if classes <= most_classes(device) else reference_sums
