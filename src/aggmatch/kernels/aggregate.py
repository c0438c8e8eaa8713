"""Aggregation over the subsets of a queue as one streaming kernel.

The reference in PyTorch writes a (B, M, S) tensor of similarities and, for the class term, (B, M, S, Y) mixtures. Here
a program holds a block of queries and loops over the slots of some subsets: matrix units compute the cosine, registers
hold the entropy of the mixtures and a running softmax per subset. Only sums of hypotheses and votes are written.

Shape suffixes: B queries, P queries padded to whole blocks, Q slots, M subsets, S slots of a subset, D features, Y
classes, G groups of subsets, R rows.
"""

import math
import os
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from aggmatch.functional import TINY
from aggmatch.kernels import shared_memory

CLASS_TERMS = {"none": 0, "divergence": 1, "distance": 2}
LOG_2 = math.log(2)
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
SCRATCH = 2**26
"""Largest size in bytes of the sums of all programs."""
UNROLLED = 4
"""Classes per iteration of the innermost loop: enough loads in flight to hide their latency."""


@triton.jit
def log2(x, FAST: tl.constexpr):
    """Hardware logarithm to base 2, accurate to 2⁻²²: one instruction, where the exact one takes a dozen."""
    return libdevice.fast_log2f(x) if FAST else tl.log2(x)


@triton.jit
def negentropy_kernel(
    probs_RY,
    negentropy_R,
    R,
    Y: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_Y: tl.constexpr,
    TINY: tl.constexpr,
    FAST: tl.constexpr,
):
    """Compute Σ p log₂ p of each distribution."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((ROWS,), tl.float32)
    for first in range(0, Y, BLOCK_Y):
        y = first + tl.arange(0, BLOCK_Y)
        place = row.to(tl.int64)[:, None] * Y + y
        p = tl.load(probs_RY + place, mask=(row < R)[:, None] & (y < Y), other=0.0)
        total += tl.sum(p * log2(p + TINY, FAST), 1)
    tl.store(negentropy_R + row, total, mask=row < R)


@triton.jit
def aggregate_kernel(
    query_BD,
    query_probs_YP,
    query_negentropy_P,
    feature_QD,
    probs_QY,
    negentropy_Q,
    slot_MS,
    sum_GBY,
    choice_BM,
    B: tl.constexpr,
    P: tl.constexpr,
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
    UNROLLED: tl.constexpr,
    FAST: tl.constexpr,
    LOG_2: tl.constexpr,
):
    """For a block of queries, sum the hypotheses of the subsets g, g + G, ... and store the class each votes for."""
    group = tl.program_id(1)
    b = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    y = tl.arange(0, BLOCK_Y)
    in_b, in_y = b < B, y < Y
    hypotheses = tl.zeros((BLOCK_B, BLOCK_Y), tl.float32)

    for turn in range((M + GROUPS - 1) // GROUPS):
        m = turn * GROUPS + group
        highest = tl.full((BLOCK_B,), -1e30, tl.float32)
        total = tl.zeros((BLOCK_B,), tl.float32)
        weighted = tl.zeros((BLOCK_B, BLOCK_Y), tl.float32)
        for start in range(0, S, BLOCK_S):
            s = start + tl.arange(0, BLOCK_S)
            slot = tl.load(slot_MS + m * S + s, mask=(s < S) & (m < M), other=-1)
            filled = slot >= 0
            slot = tl.where(filled, slot, 0)  # its values are never used, and loads without a mask are cheaper
            score = tl.zeros((BLOCK_S, BLOCK_B), tl.float32)
            if FEATURE_TERM:
                for first in range(0, D, BLOCK_D):
                    d = first + tl.arange(0, BLOCK_D)
                    query = tl.load(query_BD + b[:, None] * D + d, mask=in_b[:, None] & (d < D), other=0.0)
                    key = tl.load(feature_QD + slot[:, None] * D + d, mask=(d < D)[None, :], other=0.0)
                    score = tl.dot(key, tl.trans(query), score, input_precision="tf32x3")
            if CLASS_TERM > 0:
                # With s = p + q, JS = log 2 − ½ Σ (s log s − p log p − q log q): class by class, in registers.
                # Derived from the score, it has the layout of matrix products: the pairs of a thread share most loads.
                js = score * 0 + 2 + tl.load(negentropy_Q + slot)[:, None] + tl.load(query_negentropy_P + b)[None, :]
                for k in tl.range(0, Y, loop_unroll_factor=UNROLLED):
                    both = tl.load(probs_QY + slot * Y + k)[:, None] + tl.load(query_probs_YP + k * P + b)[None, :]
                    js -= both * log2(both, FAST)
                js = tl.maximum(js * (LOG_2 / 2), 0.0)
                score -= class_weight * (tl.sqrt(js) if CLASS_TERM == 2 else js)
            score = tl.where(filled[:, None], score * inverse_temperature, -1e30)

            new_highest = tl.maximum(highest, tl.max(score, 0))
            weight = tl.where(filled[:, None], tl.exp(score - new_highest[None, :]), 0.0)
            shrink = tl.exp(highest - new_highest)
            values = tl.load(probs_QY + slot[:, None] * Y + y, mask=in_y[None, :], other=0.0)
            weighted = tl.dot(tl.trans(weight), values, weighted * shrink[:, None], input_precision="tf32x3")
            total = total * shrink + tl.sum(weight, 0)
            highest = new_highest

        voted = total > 0  # a subset without a filled slot does not vote
        hypothesis = weighted / tl.where(voted, total, 1.0)[:, None]
        choice = tl.where(voted, tl.argmax(tl.where(in_y, hypothesis, -1.0), 1), Y)
        tl.store(choice_BM + b * M + m, choice, mask=in_b & (m < M))
        if GROUPS < M:
            hypotheses += hypothesis
        else:  # a single subset needs no registers for a sum
            hypotheses = hypothesis

    tl.store(sum_GBY + group * B * Y + b[:, None] * Y + y, hypotheses, mask=in_b[:, None] & in_y)


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
    """Return the sums over the subsets of their hypotheses and of their one-hot votes, each (B, Y).

    query_BD: unit length, in the type of feature_QD (float32 or bf16); probabilities: float32; slot_MS: −1 if empty.
    """
    (B, D), Y, (M, S) = query_BD.shape, query_probs_BY.shape[1], slot_MS.shape
    tiles = tile_sizes(B, D, Y, M, S)
    blocks = triton.cdiv(B, tiles.queries)
    query_probs_PY = F.pad(query_probs_BY, (0, 0, 0, blocks * tiles.queries - B))
    probs_QY = probs_QY.contiguous()
    sum_GBY = torch.empty(tiles.groups, B, Y, device=query_BD.device)
    choice_BM = torch.empty(B, M, device=query_BD.device, dtype=torch.long)
    aggregate_kernel[(blocks, tiles.groups)](
        query_BD.contiguous(),
        query_probs_PY.T.contiguous() + TINY,  # makes 0·log 0 = 0; changes no other value
        negentropies(query_probs_PY),
        feature_QD.contiguous(),
        probs_QY,
        negentropies(probs_QY),
        slot_MS.contiguous(),
        sum_GBY,
        choice_BM,
        B,
        len(query_probs_PY),
        M,
        S,
        D,
        Y,
        1 / temperature,
        class_weight,
        FEATURE_TERM=feature_term,
        CLASS_TERM=CLASS_TERMS[class_term] if class_weight else 0,
        GROUPS=tiles.groups,
        BLOCK_B=tiles.queries,
        BLOCK_S=tiles.slots,
        BLOCK_D=tiles.features,
        BLOCK_Y=tiles.classes,
        UNROLLED=UNROLLED,
        FAST=not INTERPRETED,
        LOG_2=LOG_2,
        num_warps=tiles.warps,
    )
    # One-hot votes of all subsets would take M times as much memory. Class Y means no vote.
    vote_BZ = torch.zeros(B, Y + 1, device=query_BD.device)
    vote_BZ.scatter_add_(1, choice_BM, torch.ones_like(choice_BM, dtype=torch.float32))
    return sum_GBY.sum(0), vote_BZ[:, :Y]


def negentropies(probs_RY: Tensor) -> Tensor:
    """Return Σ p log₂ p of each distribution, (R,), without a second tensor of their size."""
    R, Y = probs_RY.shape
    classes = min(128, triton.next_power_of_2(Y))
    rows = 4096 // classes
    negentropy_R = torch.empty(R, device=probs_RY.device)
    negentropy_kernel[(triton.cdiv(R, rows),)](
        probs_RY, negentropy_R, R, Y, ROWS=rows, BLOCK_Y=classes, TINY=TINY, FAST=not INTERPRETED
    )
    return negentropy_R


def most_classes(device: torch.device) -> int:
    """Return the largest number of classes whose tiles fit into shared memory."""
    return 2048 if shared_memory(device) >= 2**17 else 1024


class Tiles(NamedTuple):
    """Tile sizes of a program, the number of groups of subsets, and the warps of a program."""

    queries: int
    slots: int
    features: int
    classes: int
    groups: int
    warps: int


def tile_sizes(B: int, D: int, Y: int, M: int, S: int) -> Tiles:
    """Return tile sizes for any shape.

    Matrix units need at least 16 of each. The tile must hold all classes, so with more classes, fewer queries and slots
    fit. Each subset is a program of its own as long as the sums take at most 64 MB.
    """
    classes = max(16, triton.next_power_of_2(Y))
    queries = 64 if classes <= 64 else 32 if classes <= 1024 else 16
    slots = max(16, min(64, triton.next_power_of_2(S), 16384 // classes))
    features = max(16, min(64, triton.next_power_of_2(D)))
    groups = min(M, max(1, SCRATCH // (4 * B * Y)))
    warps = 4 if classes <= 128 else 8
    return Tiles(queries, slots, features, classes, groups, warps)
