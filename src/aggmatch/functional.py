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


def mean_cross_entropy(logits_BY: Sequence[Tensor], labels_B: Tensor) -> Tensor:
    """Return the cross entropy of the same labels in several views, mean over images and views, 0-d."""
    losses = [F.cross_entropy(view_BY, labels_B) for view_BY in logits_BY]
    return losses[0] if len(losses) == 1 else torch.stack(losses).mean()


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


DECILES = 10
"""Equal groups of the pseudo labels of a step, by weight."""


def score_pseudo_labels(pseudo: PseudoLabels, truth_B: Tensor | None, classes: int) -> dict[str, Tensor]:
    """Return scores of the pseudo labels of a step, whose means over steps give the metrics of the log.

    coverage = Σ w / n,   by_class = Σ w·[target = y] / n, (Y,)

    With the true labels also recall = Σ w·correct / n, and the scores of `separation`. For 0/1 weights coverage and
    recall are the usual definitions. Precision, Σ w·correct / Σ w, is their quotient.
    """
    weight_B = pseudo.weight.float()
    scores = {"coverage": weight_B.mean(), "by_class": (weight_B[:, None] * one_hot(pseudo.target, classes)).mean(0)}
    if truth_B is None:
        return scores
    right_B = pseudo.target == truth_B
    return {"recall": (weight_B * right_B).mean()} | scores | separation(weight_B, right_B)


def separation(weight_B: Tensor, right_B: Tensor) -> dict[str, Tensor]:
    """Return how well the weights of one step separate right from wrong pseudo labels.

    pairs: R·W / n² with R right and W wrong ones, 0-d. ordered: the part of these pairs in which the right one has the
    larger weight, where equal weights count half, 0-d. ordered / pairs is the AUC. precision_by_weight: share of
    right ones in each of ten equal groups, the smallest weights first, (10,). Pseudo labels of equal weight have no
    order: their share of right ones goes evenly to the groups that they span. right_B: bool.

    The counts are exact, shapes are fixed, and nothing is read on the host.
    """
    count = len(weight_B)
    weight_B, order_B = weight_B.sort()
    right_B = right_B[order_B].float()
    starts_B = torch.ones_like(order_B, dtype=torch.bool)  # whether a weight differs from the one before it
    starts_B[1:] = weight_B[1:] != weight_B[:-1]
    tie_B = starts_B.cumsum(0) - 1  # number of the group of equal weights; there are at most B
    size_T = torch.zeros_like(weight_B).index_add(0, tie_B, torch.ones_like(weight_B))
    right_T = torch.zeros_like(weight_B).index_add(0, tie_B, right_B)
    wrong_T = size_T - right_T
    ordered = (right_T * (wrong_T.cumsum(0) - wrong_T / 2)).sum()

    share_B = right_T[tie_B] / size_T[tie_B]
    position_B = torch.arange(count, device=weight_B.device)
    edge_D1 = torch.arange(DECILES + 1, device=weight_B.device)[:, None] * (count / DECILES)
    inside_DB = torch.minimum(edge_D1[1:], position_B + 1) - torch.maximum(edge_D1[:-1], position_B)
    return {
        "ordered": ordered / count**2,
        "pairs": right_B.sum() * (1 - right_B).sum() / count**2,
        "precision_by_weight": (inside_DB.clamp(min=0) * share_B).sum(1) * (DECILES / count),
    }
