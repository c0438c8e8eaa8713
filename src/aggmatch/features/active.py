"""Which images to label next, and which labels are probably wrong.

Both work on features of the images, and use the predictions of a trained network if there are any.

Shapes: N images, D features, L labelled images, M images of a sample, Y classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

SAMPLE = 4000
"""Images to choose from, at most: a random sample if there are more. Their pairwise similarities fit into memory."""
SHARPNESS = 4.0
"""An image with the cosine c to a labelled one is covered by exp(SHARPNESS · (c − 1))."""
LEAST_WEIGHT = 0.02
"""Weight of an image of which the network is certain; an image with two equally probable classes has weight 1."""
NEIGHBOURS = 20
"""Number of similar unlabelled images whose predictions judge a label."""
RIDGE = 3.0
"""Regularisation of the linear classifier that predicts each label from all others."""
CHUNK = 2000
"""Images whose similarities to all others are computed at once."""


@dataclass(frozen=True)
class Doubt:
    """A given label that the other images contradict.

    Example: `Doubt(index=17, given=3, suggested=5, score=0.8)`.
    """

    index: int
    """Position of the image among the N images."""
    given: int
    """Its label."""
    suggested: int
    """The class that it has according to the others."""
    score: float
    """How much more probable the suggested class is than the given one, from −1 to 1. It can be below 0 if the network
    itself has learned the given label."""


def suggest(
    feature_ND: Tensor, labeled: Sequence[int], count: int, *, probs_NY: Tensor | None = None, seed: int = 0
) -> list[int]:
    """Return the positions of the images that teach most, best first.

    A labelled image covers the images that are similar to it. Each choice is the image that adds most to the sum of
    what is covered over all images, so that typical images of large groups come first, and neither images that are
    similar to labelled ones nor two that are similar to each other are chosen. With predictions, an image counts more
    if its margin is small, which is the probability of its best class minus that of the second: images of which the
    network is certain need no cover. This is MaxHerding (arXiv 2407.12212), and with predictions uncertainty herding
    (arXiv 2412.20644).

    feature_ND: features of all N images. labeled: positions of the images that have a label. count: number of images to
    choose; fewer if there are not enough. probs_NY: class probabilities of all images; None before any training. seed:
    of the random sample, if more than 4,000 images have no label. The same arguments always give the same choice.

    Example: `suggest(features, [], 20)` for the first 20 images to label.
    """
    unit_ND = directions(feature_ND)
    labeled_L = torch.tensor(list(labeled), dtype=torch.int64)
    free = torch.ones(len(unit_ND), dtype=torch.bool)
    free[labeled_L] = False
    index_M = sample_of(free.nonzero()[:, 0], seed)  # images with a label need no cover
    unit_MD = unit_ND[index_M]
    weight_M = torch.ones(len(index_M)) if probs_NY is None else uncertainty(probs_NY[index_M])
    covered_M = torch.zeros(len(index_M))
    for chunk in labeled_L.split(CHUNK) if len(labeled_L) else ():
        covered_M = torch.maximum(covered_M, cover(unit_ND[chunk], unit_MD).amax(0))
    cover_MM = cover(unit_MD, unit_MD)  # rows: images to choose
    taken_M = torch.zeros(len(index_M), dtype=torch.bool)
    chosen = []
    for _ in range(min(count, len(index_M))):
        gain_M = (cover_MM - covered_M).clamp_(min=0) @ weight_M
        best = int(gain_M.masked_fill_(taken_M, -1).argmax())
        chosen.append(int(index_M[best]))
        taken_M[best] = True
        covered_M = torch.maximum(covered_M, cover_MM[best])
    return chosen


def find_doubts(feature_ND: Tensor, labeled: Tensor, labels: Tensor, probs_NY: Tensor | None = None) -> list[Doubt]:
    """Return the labels that the other images contradict, most suspicious first.

    A network memorises wrong labels, so every label is judged without it: by a linear classifier that was trained with
    all other labels and, with predictions, by those for the most similar images without a label. The network's own
    prediction of the image only changes the order of the list.

    feature_ND: features of all N images. labeled, labels: positions of the labelled images, (L,), and their labels.
    probs_NY: class probabilities of all images by a network that was trained with these labels. Without it, the only
    label of a class is not judged, because nothing else tells what the class looks like.

    Example: `find_doubts(features, split.labeled, split.labels)[0].suggested`.
    """
    if not len(labeled):
        return []
    unit_ND, labeled, labels = directions(feature_ND), labeled.cpu(), labels.cpu()
    probs_NY = None if probs_NY is None else probs_NY.detach().cpu().float()
    classes = int(labels.max()) + 1 if probs_NY is None else probs_NY.shape[1]
    alone_L = labels.bincount(minlength=classes)[labels] < 2
    judge_LY = predict_left_out(unit_ND[labeled], labels, classes)
    own_LY = torch.zeros_like(judge_LY)
    if probs_NY is not None:
        neighbour_LY = neighbours_say(unit_ND, labeled, probs_NY)
        judge_LY = torch.where(alone_L[:, None], neighbour_LY, (judge_LY + neighbour_LY) / 2)
        own_LY = probs_NY[labeled]
    row_L = torch.arange(len(labels))
    suggested_L = judge_LY.argmax(1)
    lead_L, own_lead_L = (each[row_L, suggested_L] - each[row_L, labels] for each in (judge_LY, own_LY))
    score_L = lead_L if probs_NY is None else (2 * lead_L + own_lead_L) / 3
    contradicted_L = suggested_L != labels
    if probs_NY is None:
        contradicted_L &= ~alone_L
    doubts = [
        Doubt(int(labeled[row]), int(labels[row]), int(suggested_L[row]), float(score_L[row]))
        for row in contradicted_L.nonzero()[:, 0].tolist()
    ]
    return sorted(doubts, key=lambda doubt: (-doubt.score, doubt.index))


def directions(feature_ND: Tensor) -> Tensor:
    """Return the directions of the features from their mean, of length 1: their products are the cosines."""
    values = feature_ND.detach().cpu().float()
    return F.normalize(values - values.mean(0), dim=1) if len(values) else values


def sample_of(index_N: Tensor, seed: int) -> Tensor:
    """Return at most SAMPLE of the positions, in order."""
    if len(index_N) <= SAMPLE:
        return index_N
    chosen = torch.randperm(len(index_N), generator=torch.Generator().manual_seed(seed))[:SAMPLE]
    return index_N[chosen.sort().values]


def uncertainty(probs_NY: Tensor) -> Tensor:
    """Return 1 minus the margin between the two most probable classes, (N,), and at least LEAST_WEIGHT."""
    top = probs_NY.detach().cpu().float().topk(min(2, probs_NY.shape[1]), dim=1).values
    return (1 - (top[:, 0] - top[:, -1])).clamp(min=LEAST_WEIGHT)


def cover(chosen_AD: Tensor, unit_BD: Tensor) -> Tensor:
    """Return how much images cover others, (A, B): 1 for equal directions, near 0 for unrelated images."""
    return (chosen_AD @ unit_BD.T).sub_(1).mul_(SHARPNESS).exp_()


def predict_left_out(unit_LD: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return what a ridge classifier says about each image when it is trained with all labels but that image's.

    With H the matrix that maps the labels to the predictions of the classifier trained with all of them, the prediction
    without the image's own label is y − (y − Hy) / (1 − H_ii). Returns (L, Y); rows sum to 1.
    """
    values_LD = unit_LD.double()
    inverse_DD = torch.cholesky_inverse(
        torch.linalg.cholesky(values_LD.T @ values_LD + RIDGE * torch.eye(values_LD.shape[1]))
    )
    solved_LD = values_LD @ inverse_DD  # H = solved valuesᵀ
    target_LY = F.one_hot(labels, classes).double() - 1 / classes
    own_L1 = (solved_LD * values_LD).sum(1, keepdim=True)
    residual_LY = (target_LY - solved_LD @ (values_LD.T @ target_LY)) / (1 - own_L1)
    scores = (target_LY - residual_LY + 1 / classes).float().clamp(min=0)
    return scores / scores.sum(1, keepdim=True)


def neighbours_say(unit_ND: Tensor, labeled: Tensor, probs_NY: Tensor) -> Tensor:
    """Return the mean prediction for the unlabelled images that are most similar to each labelled one, (L, Y).

    More similar ones count more. Without unlabelled images, the other labelled ones are used.
    """
    known = torch.zeros(len(unit_ND), dtype=torch.bool)
    known[labeled] = True
    asked = (~known).nonzero()[:, 0] if not known.all() else torch.arange(len(unit_ND))
    count = min(NEIGHBOURS, len(asked) - 1) or 1
    said = []
    for chunk in labeled.split(CHUNK):
        cosine = unit_ND[chunk] @ unit_ND[asked].T
        cosine.masked_fill_(chunk[:, None] == asked, -torch.inf)
        top = cosine.topk(count, dim=1)
        weight = (SHARPNESS * top.values).softmax(1)
        said.append((weight[:, :, None] * probs_NY[asked[top.indices]]).sum(1))
    return torch.cat(said)
