"""Classic learners on frozen features: what a method must beat to be worth its time."""

import warnings

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from aggmatch.features.self_training import self_trained

NEIGHBOURS = 15


def probe_accuracies(
    feature_ND: Tensor, averaged_ND: Tensor, labels: Tensor, test_MD: Tensor, truth: Tensor
) -> dict[str, float]:
    """Return the test accuracies in percent of classic learners on the same features and labels, by name.

    feature_ND: features of training images, the labelled ones first. averaged_ND: their means over several views, from
    which self-training learns. labels: of the labelled images, (L,). test_MD, truth: features of the test images and
    their classes. `logistic regression` learns from the labelled images alone, `LabelSpreading` also from their
    neighbours among the others, and `self-training` is logistic regression that goes on to learn from its own
    predictions.

    Example: `probe_accuracies(plain, averaged, split.labels, test_features, test.labels)`.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.semi_supervised import LabelSpreading

    train, test = (F.normalize(values.float(), dim=1).numpy() for values in (feature_ND, test_MD))
    known = labels.numpy()
    if len(set(known.tolist())) < 2:
        return {}
    given: NDArray[np.int64] = np.full(len(train), -1)
    given[: len(known)] = known
    neighbours = min(NEIGHBOURS, len(train) - 1)
    learners = {
        "logistic regression": (LogisticRegression(C=100, max_iter=1000), train[: len(known)], known),
        "LabelSpreading": (LabelSpreading(kernel="knn", n_neighbors=neighbours), train, given),
    }
    accuracies = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # images without a neighbour that has a label; slow convergence
        for name, (learner, values, targets) in learners.items():
            correct = learner.fit(values, targets).predict(test) == truth.numpy()
            accuracies[name] = 100 * float(correct.mean())
    classifier = self_trained(averaged_ND.float(), torch.arange(len(labels)), labels, int(labels.max()) + 1)
    correct = (classifier.logits(test_MD.float()).argmax(1) == truth).numpy()
    return accuracies | {"self-training": 100 * float(correct.mean())}
