"""A linear classifier on features that learns from its own predictions: the start of fine-tuning, and a rival.

Shapes: N images, L labelled ones, D features, Y classes.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

ROUNDS = 12
"""How often the classifier learns from its own predictions."""
FIRST, LAST = 0.1, 0.8
"""Share of the images whose predictions count in the first and in the last round."""
PENALTY = 0.4
"""L2 penalty on the weights for features with a mean norm of 1, in units of the loss of one image."""
LABEL_WEIGHT = 3.0
"""Weight of a labelled image; that of one with a predicted class is 1."""
ITERATIONS = 60
MOST = 4000
"""Most images without a label to learn from; more would take longer and gain little."""


class LinearClassifier(NamedTuple):
    """Logits of features f are weight · f + bias.

    Example: `classifier.logits(features).argmax(1)`.
    """

    weight: Tensor
    """(Y, D)."""
    bias: Tensor
    """(Y,)."""

    def logits(self, feature_ND: Tensor) -> Tensor:
        """(N, D) → (N, Y)."""
        return F.linear(feature_ND, self.weight, self.bias)


def self_trained(
    feature_ND: Tensor, labeled: Tensor, labels: Tensor, classes: int, before: LinearClassifier | None = None
) -> LinearClassifier:
    """Return a linear classifier that learned from labels and, round by round, from more of its own predictions.

    labeled, labels: positions of the labelled images, (L,), and their classes. classes: Y. Of the other images, at most
    4,000 are drawn. Each round aligns the mean prediction to the shares of the classes among the labels; then the
    surest images of each class count, in these shares. before: a better classifier, from whose predictions the result
    learns in a single round. Features are standardised for learning; the result takes them as they are.

    Example: `self_trained(features, torch.tensor([0, 9]), torch.tensor([0, 1]), 2).logits(features)`.
    """
    mean_D = feature_ND.mean(0)
    scale_D = feature_ND.std(0, correction=0).clamp(min=1e-3) * feature_ND.shape[1] ** 0.5
    standard_ND = (feature_ND - mean_D) / scale_D
    share_Y = labels.bincount(minlength=classes) / len(labels)
    free_M = drawn(torch.arange(len(feature_ND), device=labels.device), labeled)
    weight_L = torch.full_like(labels, LABEL_WEIGHT, dtype=torch.float32)
    classifier = fit(standard_ND[labeled], labels, weight_L, classes)
    logits_MY = classifier.logits(standard_ND[free_M]) if before is None else before.logits(feature_ND[free_M])
    counted = torch.linspace(FIRST, LAST, ROUNDS).tolist() if before is None else [LAST]
    for share in counted if len(free_M) else ():
        probs_MY = logits_MY.softmax(1)
        probs_MY = F.normalize(probs_MY * share_Y / probs_MY.mean(0), p=1, dim=1)
        sure = surest(probs_MY, (share * len(free_M) * share_Y).round().long().tolist())
        targets = torch.cat([labels, probs_MY[sure].argmax(1)])
        weights = torch.cat([weight_L, torch.ones(len(sure), device=labels.device)])
        classifier = fit(standard_ND[torch.cat([labeled, free_M[sure]])], targets, weights, classes)
        logits_MY = classifier.logits(standard_ND[free_M])
    weight_YD = classifier.weight / scale_D
    return LinearClassifier(weight_YD, classifier.bias - weight_YD @ mean_D)


def drawn(index_M: Tensor, labeled: Tensor) -> Tensor:
    """Return those of the positions that have no label, or a sample of them if there are many; always the same one."""
    free = index_M[~torch.isin(index_M, labeled)]
    if len(free) <= MOST:
        return free
    return free[torch.randperm(len(free), generator=torch.Generator().manual_seed(0))[:MOST].to(free.device)]


def surest(probs_MY: Tensor, counts: list[int]) -> Tensor:
    """Return the positions of the images that are surest of each class, which is their likeliest.

    counts: number of images of each class; there may be fewer.
    """
    highest_M, class_M = probs_MY.max(1)
    order = highest_M.argsort(descending=True, stable=True)
    return torch.cat([order[class_M[order] == label][:count] for label, count in enumerate(counts)])


def fit(feature_BD: Tensor, label_B: Tensor, weight_B: Tensor, classes: int) -> LinearClassifier:
    """Return the classifier with the lowest penalised cross-entropy, Σ w·CE + PENALTY·|W|²/2."""
    weight_YD = feature_BD.new_zeros(classes, feature_BD.shape[1]).requires_grad_()
    bias_Y = feature_BD.new_zeros(classes).requires_grad_()
    optimizer = torch.optim.LBFGS([weight_YD, bias_Y], max_iter=ITERATIONS, line_search_fn="strong_wolfe")
    total = float(weight_B.sum())

    def loss() -> Tensor:
        optimizer.zero_grad()
        each_B = F.cross_entropy(F.linear(feature_BD, weight_YD, bias_Y), label_B, reduction="none")
        value: Tensor = ((weight_B * each_B).sum() + PENALTY / 2 * weight_YD.square().sum()) / total
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    return LinearClassifier(weight_YD.detach(), bias_Y.detach())
