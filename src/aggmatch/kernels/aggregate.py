"""Aggregation over the subsets of a queue as one streaming kernel.

The plain form writes a (B, M, S) tensor of similarities and, for the class term, (B, M, S, Y) mixtures. Here a program
holds a block of queries and walks through the slots of some subsets: the cosine by matrix units, the entropy of the
mixtures in registers, a running softmax per subset. Only the sums over its subsets are written.

Shape suffixes: B queries, Q slots, M subsets, S slots of a subset, D features, Y classes, G groups of subsets.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

CLASS_TERMS = {"none": 0, "divergence": 1, "distance": 2}


@triton.jit
def aggregate_kernel(
    query_BD,
    query_probs_BY,
    query_entropy_B,
    feature_QD,
    probs_QY,
    slot_MS,
    mean_GBY,
    vote_GBY,
    B: tl.constexpr,
    M: tl.constexpr,
    S: tl.constexpr,
    D: tl.constexpr,
    Y: tl.constexpr,
    inverse_temperature,
    class_weight,
    FEATURE_TERM: tl.constexpr,
    CLASS_TERM: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_Y: tl.constexpr,
):
    """Sums of hypotheses and of ballots over the subsets g, g + G, ... for one block of queries."""
    group = tl.program_id(1)
    b = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    y = tl.arange(0, BLOCK_Y)
    in_b, in_y = b < B, y < Y
    mean = tl.zeros((BLOCK_B, BLOCK_Y), tl.float32)
    vote = tl.zeros((BLOCK_B, BLOCK_Y), tl.float32)
    query_entropy = tl.load(query_entropy_B + b, mask=in_b, other=0.0)

    for turn in range(0, (M + GROUPS - 1) // GROUPS):
        m = turn * GROUPS + group
        highest = tl.full((BLOCK_B,), -1e30, tl.float32)
        total = tl.zeros((BLOCK_B,), tl.float32)
        weighted = tl.zeros((BLOCK_B, BLOCK_Y), tl.float32)
        for start in range(0, S, BLOCK_S):
            s = start + tl.arange(0, BLOCK_S)
            slot = tl.load(slot_MS + m * S + s, mask=(s < S) & (m < M), other=-1)
            filled = slot >= 0
            slot = tl.where(filled, slot, 0)
            values = tl.load(probs_QY + slot[:, None] * Y + y, mask=filled[:, None] & in_y, other=0.0)
            score = tl.zeros((BLOCK_B, BLOCK_S), tl.float32)
            if FEATURE_TERM:
                for first in range(0, D, BLOCK_D):
                    d = first + tl.arange(0, BLOCK_D)
                    query = tl.load(query_BD + b[:, None] * D + d, mask=in_b[:, None] & (d < D), other=0.0)
                    key = tl.load(feature_QD + slot[:, None] * D + d, mask=filled[:, None] & (d < D), other=0.0)
                    score = tl.dot(query, tl.trans(key), score, input_precision="ieee")
            if CLASS_TERM > 0:
                # Σ_y m log m with m = (p + q)/2, over classes one by one: never a tensor of all three.
                negentropy = tl.zeros((BLOCK_B, BLOCK_S), tl.float32)
                for k in range(Y):
                    p = tl.load(query_probs_BY + b * Y + k, mask=in_b, other=0.0)
                    q = tl.load(probs_QY + slot * Y + k, mask=filled, other=0.0)
                    mixture = (p[:, None] + q[None, :]) * 0.5
                    negentropy += mixture * tl.log(tl.maximum(mixture, 1e-37))
                slot_entropy = -tl.sum(values * tl.log(tl.maximum(values, 1e-37)), 1)
                js = -negentropy - 0.5 * query_entropy[:, None] - 0.5 * slot_entropy[None, :]
                js = tl.maximum(js, 0.0)
                score -= class_weight * (tl.sqrt(js) if CLASS_TERM == 2 else js)
            score = tl.where(filled[None, :], score * inverse_temperature, -1e30)

            new_highest = tl.maximum(highest, tl.max(score, 1))
            weight = tl.where(filled[None, :], tl.exp(score - new_highest[:, None]), 0.0)
            shrink = tl.exp(highest - new_highest)
            weighted = tl.dot(weight, values, weighted * shrink[:, None], input_precision="ieee")
            total = total * shrink + tl.sum(weight, 1)
            highest = new_highest

        voted = total > 0  # a subset without a filled slot neither votes nor enters the mean
        hypothesis = weighted / tl.where(voted, total, 1.0)[:, None]
        winner = tl.argmax(tl.where(in_y, hypothesis, -1.0), 1)
        mean += hypothesis
        vote += tl.where((y == winner[:, None]) & voted[:, None], 1.0, 0.0)

    place = group * B * Y + b[:, None] * Y + y
    tl.store(mean_GBY + place, mean, mask=in_b[:, None] & in_y)
    tl.store(vote_GBY + place, vote, mask=in_b[:, None] & in_y)


def aggregate_sums(
    query_BD: Tensor,
    query_probs_BY: Tensor,
    feature_QD: Tensor,
    probs_QY: Tensor,
    slot_MS: Tensor,
    *,
    temperature: float,
    feature_term: bool,
    class_term: str,
    class_weight: float,
) -> tuple[Tensor, Tensor]:
    """Sums over the subsets of their hypotheses and of their one-hot ballots, each (B, Y).

    query_BD: unit length, of the type of feature_QD (float32 or bf16); probabilities: float32; slot_MS: −1 where empty.
    """
    query_BD, query_probs_BY, slot_MS = query_BD.contiguous(), query_probs_BY.contiguous(), slot_MS.contiguous()
    feature_QD, probs_QY = feature_QD.contiguous(), probs_QY.contiguous()
    (B, D), Y, (M, S) = query_BD.shape, query_probs_BY.shape[1], slot_MS.shape
    block_b, block_s, block_d, block_y, groups = block_sizes(B, D, Y, M, S)
    mean_GBY = torch.empty(groups, B, Y, device=query_BD.device)
    vote_GBY = torch.empty_like(mean_GBY)
    aggregate_kernel[(triton.cdiv(B, block_b), groups)](
        query_BD,
        query_probs_BY,
        torch.special.entr(query_probs_BY).sum(-1),
        feature_QD,
        probs_QY,
        slot_MS,
        mean_GBY,
        vote_GBY,
        B,
        M,
        S,
        D,
        Y,
        1 / temperature,
        class_weight,
        FEATURE_TERM=feature_term,
        CLASS_TERM=CLASS_TERMS[class_term] if class_weight else 0,
        GROUPS=groups,
        BLOCK_B=block_b,
        BLOCK_S=block_s,
        BLOCK_D=block_d,
        BLOCK_Y=block_y,
        num_warps=4,
    )
    return mean_GBY.sum(0), vote_GBY.sum(0)


def block_sizes(B: int, D: int, Y: int, M: int, S: int) -> tuple[int, int, int, int, int]:
    """Queries, slots, features and classes of a tile, and groups of subsets, for any shape.

    Matrix units want at least 16 of each. The tile of classes must hold them all, so the more there are, the fewer
    slots a tile has. Subsets are spread over groups until there are a few programs for each multiprocessor, as long as
    the sums of all groups take less than 64 MB.
    """
    block_y = max(16, triton.next_power_of_2(Y))
    block_b = 16
    block_s = max(16, min(64, triton.next_power_of_2(S), 8192 // block_y))
    block_d = max(16, min(128, triton.next_power_of_2(D)))
    groups = min(M, triton.cdiv(1024, triton.cdiv(B, block_b)), max(1, 2**26 // (8 * B * Y)))
    return block_b, block_s, block_d, block_y, groups
