"""How accurate a model is on images without a label.

The accuracy is estimated from predictions of labelled images by models that have not seen their labels.

Labelled images are not a random sample: the suggested ones are those of which the model is not certain, and they differ
from each other. Their share of correct predictions is far too low for all images. So each labelled image is weighted by
the number of images to which it is the most similar labelled one. And the labelled images only tell how often a
prediction of a given confidence is right; this is then applied to the confidences of the images without a label.
`benchmarks/page_estimate.py` measures the result.

Shapes: N images, D features, Y classes, L labelled images, U images without a label.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.floating[Any]]
LEAST = 1e-3
"""Confidences are clipped to this distance from 0 and 1, where the log odds would be infinite."""
BELIEF, DOUBT = np.array([0.0, 1.0]), np.array([2.0, 0.5])
"""Prior of intercept and slope: that the model is right as often as it says, and the deviations from that."""
ITERATIONS = 30
DRAWS = 500
"""Calibrations that are drawn to get the interval. Their mean is less optimistic than the most probable one."""
CHUNK = 5000


class Judged(NamedTuple):
    """An accuracy and its 95 % interval, in percent."""

    accuracy: float
    low: float
    high: float


def judge(
    feature_ND: Tensor,
    probs_NY: NDArray[np.float32],
    unseen: Mapping[int, NDArray[np.float32]],
    given: Mapping[int, int],
) -> Judged:
    """Return the accuracy of predictions on the images without a label.

    feature_ND: of all images. probs_NY: predictions of the model. unseen: position → class probabilities (Y,) by a
    model that did not see the label of this image; at least one. given: position → label, of all labelled images.

    Example: `judge(features, probs, cross_validate(run, progress), {0: 1, 7: 0}).accuracy`.
    """
    places = list(unseen)
    predicted_LY = np.stack([unseen[place] for place in places])
    right_L = (predicted_LY.argmax(1) == [given[place] for place in places]).astype(np.float64)
    free = np.setdiff1d(np.arange(len(probs_NY)), list(given))
    if not len(free):  # all images have a label: estimate for new images that are like them
        return calibrated(predicted_LY.max(1), right_L, np.ones(len(places)), predicted_LY.max(1))
    weight_L = np.bincount(nearest(feature_ND, free, places), minlength=len(places)) + 0.5
    return calibrated(predicted_LY.max(1), right_L, weight_L, probs_NY[free].max(1))


def nearest(feature_ND: Tensor, free: NDArray[np.int64], places: list[int]) -> NDArray[np.int64]:
    """Return for each image without a label which labelled one is most similar to it, (U,), from 0 to L − 1."""
    middle = feature_ND.mean(0)
    known_LD = F.normalize(feature_ND[places] - middle, dim=1)
    parts = torch.from_numpy(free).split(CHUNK)
    found = [(F.normalize(feature_ND[part] - middle, dim=1) @ known_LD.T).argmax(1) for part in parts]
    return torch.cat(found).numpy()


def calibrated(confidence_L: Array, right_L: Array, weight_L: Array, confidence_U: Array) -> Judged:
    """Return the accuracy of predictions from their confidences, by logistic regression on predictions of known images.

    log odds of being right = intercept + slope · log odds of the confidence, a priori as the model says: 0 and 1

    confidence_L, right_L, weight_L: of predictions of known images, whether they are right, and their weights. Unequal
    weights count as fewer images: (Σw)² / Σw² of them. confidence_U: of the predictions to judge. The prior matters if
    all known images are right, where logistic regression alone has no finite answer.
    """
    weight_L = weight_L * weight_L.sum() / (weight_L**2).sum()
    inputs, precision = with_constant(confidence_L), np.diag(DOUBT**-2.0)
    best = BELIEF.copy()
    for _ in range(ITERATIONS):  # Newton's method
        share = sigmoid(inputs @ best)
        slope = inputs.T @ (weight_L * (share - right_L)) + precision @ (best - BELIEF)
        curvature = inputs.T @ ((weight_L * share * (1 - share))[:, None] * inputs) + precision
        best -= np.clip(np.linalg.solve(curvature, slope), -1, 1)
    drawn = np.random.default_rng(0).multivariate_normal(best, np.linalg.inv(curvature), DRAWS)
    values, counts = np.unique(np.round(confidence_U, 3), return_counts=True)  # many images, few confidences
    accuracies = 100 * sigmoid(drawn @ with_constant(values).T) @ counts / counts.sum()
    return Judged(float(accuracies.mean()), *np.percentile(accuracies, [2.5, 97.5]).tolist())


def with_constant(confidence: Array) -> Array:
    """Return what logistic regression takes: a constant and the log odds of each confidence, (count, 2)."""
    share = np.clip(confidence.astype(np.float64), LEAST, 1 - LEAST)
    return np.stack([np.ones_like(share), np.log(share / (1 - share))], 1)


def sigmoid(values: Array) -> Array:
    """Return 1 / (1 + exp(−x))."""
    share: Array = 1 / (1 + np.exp(-values))
    return share
