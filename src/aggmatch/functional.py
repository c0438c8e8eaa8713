"""The maths of the methods, as pure functions of tensors.

Shape suffixes: B samples of a batch, Y classes. `probs` sum to 1 over Y, `logits` do not.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

TINY = 1e-37
"""Added before a logarithm, so that 0·log 0 is 0."""


def one_hot(index: Tensor, classes: int) -> Tensor:
    """Return bool, True at the index: (...) → (..., Y). Unlike torch's own, it does not read values on the host."""
    return index[..., None] == torch.arange(classes, device=index.device)


def sharpen(probs_BY: Tensor, temperature: float) -> Tensor:
    """Return probabilities raised to 1/T and renormalised, (B, Y); as T → 0 they become one-hot.

    q̄ = p̄^(1/T) / Σ_y p̄_y^(1/T)

    Computed from logarithms relative to the largest entry, so that a small T does not underflow to 0/0.
    """
    return torch.softmax(torch.log(probs_BY) / temperature, dim=-1)


def soft_cross_entropy(target_BY: Tensor, logits_BY: Tensor) -> Tensor:
    """Return −Σ_y target_y · log softmax(logits)_y for each sample, (B,). The target gets no gradient."""
    return -(target_BY.detach() * F.log_softmax(logits_BY.float(), dim=-1)).sum(-1)


def entropy(probs_BY: Tensor) -> Tensor:
    """Return −Σ_y p_y log p_y in nats, (B,), with 0·log 0 = 0."""
    return torch.special.entr(probs_BY).sum(-1)


def consensus_confidence(vote_BY: Tensor) -> Tensor:
    """Return exp of the negative entropy of the votes, (B,): 1 exactly when all voters agree.

    c̄_b = exp(Σ_y a_by log a_by)          (Sec. IV-D)

    vote_BY: share of the voters for each class; rows sum to 1.
    """
    return torch.exp(-entropy(vote_BY))


def linear_ramp(progress: Tensor, share: float) -> Tensor:
    """Return a weight that grows linearly from 0 to 1 over the first `share` of the steps; always 1 if that is 0."""
    return (progress / share).clamp(0, 1) if share else torch.ones_like(progress)


def mixup(values: Tensor, partner_B: Tensor, share_B: Tensor) -> Tensor:
    """Return λ·x_b + (1 − λ)·x_partner(b), with a λ for each sample; values: (B, ...), float."""
    share = share_B.view(-1, *[1] * (values.ndim - 1))
    return share * values + (1 - share) * values[partner_B]


def beta_shares(count: int, alpha: float, generator: torch.Generator) -> Tensor:
    """Return max(b, 1 − b) with b ~ Beta(α, α), (count,): the larger share of each mixture."""
    # b = G/(G + G′) of two Gammas, G(α) = G(α + 1)·U^(1/α), as logarithms: for a small α, G would underflow.
    # torch.distributions takes no generator; this is the sampler that it uses.
    concentration = torch.full((2, count), alpha + 1, device=generator.device)
    uniform = 1 - torch.rand(concentration.shape, generator=generator, device=generator.device)  # never 0
    logs = torch._standard_gamma(concentration, generator=generator).log() + uniform.log() / alpha
    return logs.softmax(0).amax(0)


def interleave(batches: Sequence[Tensor]) -> list[Tensor]:
    """Return batches of the same size that each hold an equal part of every given batch. It is its own inverse.

    Sample p of batch i becomes sample p of batch (p − i) mod n, of n batches. The parts differ by at most one sample.
    """
    count, size = len(batches), len(batches[0])
    position_P = torch.arange(size, device=batches[0].device)
    batch_N1 = torch.arange(count, device=batches[0].device)[:, None]
    source_NP = (position_P - batch_N1) % count * size + position_P
    return list(torch.cat(list(batches)).index_select(0, source_NP.flatten()).split(size))


class PseudoLabels(NamedTuple):
    """The labels that a method assigns to an unlabelled batch, for the log.

    Example: `PseudoLabels(probs.argmax(-1), (probs.amax(-1) >= 0.95).float())`.
    """

    target: Tensor
    """Class, (B,) int64."""
    weight: Tensor
    """Weight in the loss: a 0/1 mask or a number in [0, 1], (B,)."""


class Aggregate(NamedTuple):
    """Refined predictions, and the agreement of the subsets of the memory.

    Example: `aggregate(feature, probs, memory, temperature=0.05).confidence`.
    """

    probs: Tensor
    """p̄, mean of the distributions by each subset, (B, Y)."""
    vote: Tensor
    """a, share of the subsets that vote for each class, (B, Y)."""
    confidence: Tensor
    """c̄ = exp(Σ a log a), (B,)."""


def score_pseudo_labels(pseudo: PseudoLabels, truth_B: Tensor | None) -> dict[str, Tensor]:
    """Return the coverage of pseudo labels and, if the true labels are known, their recall.

    recall = Σ w·correct / n,   coverage = Σ w / n

    For 0/1 weights these are the usual definitions. Precision, Σ w·correct / Σ w, is their quotient.
    """
    weight_B = pseudo.weight.float()
    recall = {} if truth_B is None else {"recall": (weight_B * (pseudo.target == truth_B)).mean()}
    return recall | {"coverage": weight_B.mean()}
