"""Cross-validation on a pretrained backbone: the accuracy on images without a label, and what more labels would bring.

Shapes: N images, L labelled images, D features, Y classes.
"""

import dataclasses

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from aggmatch.data import DataSet, Split
from aggmatch.evaluation import predict
from aggmatch.features.accuracy import Judged, judge
from aggmatch.features.self_training import drawn
from aggmatch.models.network import Standardize
from aggmatch.progress import Progress, following
from aggmatch.training.inputs import FeatureInputs, Inputs
from aggmatch.training.linear_start import start_linearly, store_before
from aggmatch.training.optim import copy_buffers
from aggmatch.training.run import Run
from aggmatch.training.trainer import Trainer

FOLDS = 5
SHARE = 3
"""A model of cross-validation is trained for 1 / SHARE of the steps of the run."""
REPEATS = 3
FEWEST = 5
"""Fewest predictions of left-out labels from which an accuracy is estimated."""
FEWEST_FOR_GAIN = 50
"""With fewer labels, no gain is estimated: with 40 of them, 3 of 20 estimates were wrong by 4 to 9 points."""


class Again(Trainer):
    """Trains on fewer labels of a run: on the features that it has in memory, or from the pretrained backbone again."""

    def __init__(self, run: Run, split: Split) -> None:
        self.known = run.state.inputs
        steps = max(run.settings.train.steps // SHARE, 1)
        settings = dataclasses.replace(run.settings, train=dataclasses.replace(run.settings.train, steps=steps))
        frozen = run.state.online.frozen.state_dict() if run.state.online.frozen else None
        super().__init__(settings, run.data, split, run.state.device, frozen)
        if settings.train.linear_start:
            start_linearly(self, split)

    def build_inputs(self, data: DataSet, split: Split) -> Inputs:
        """Return frozen features of the run, whose standardisation belongs to the new networks, or images."""
        if not isinstance(self.known, FeatureInputs):
            return super().build_inputs(data, split)
        assert isinstance(self.online.backbone, Standardize)
        self.online.backbone.fit(self.known.plain)
        copy_buffers(self.average, self.online)
        return self.known


def estimate_accuracy(run: Run, progress: Progress | None = None) -> Judged | None:
    """Return the accuracy of a trained run on its images without a label, estimated from the labelled ones.

    progress: see `following`. None without a pretrained backbone, and if fewer than five labels can be left out. It
    takes 5 / 3 of the time of the training. Of many images without a label, a sample is judged.

    Example: `estimate_accuracy(run).accuracy`, in percent, after `run.train()`.
    """
    split, labels = run.split, run.split.labels.tolist()
    if run.settings.train.backbone == "scratch" or sum(map(len, assign_folds(split.labels))) < FEWEST:
        return None
    with following(progress, "Estimating the accuracy", "steps") as report:
        unseen = cross_validate(run, report)
    index = torch.cat([split.labeled, drawn(split.unlabeled, split.labeled)])
    features = store_before(run.state).plain(run.data.train.pixels[index]).float()
    row = {position: number for number, position in enumerate(split.labeled.tolist())}
    known = {row[position]: probs for position, probs in unseen.items()}
    return judge(features, predictions(run.state, index), known, dict(enumerate(labels)))


def cross_validate(run: Run, progress: Progress) -> dict[int, NDArray[np.float32]]:
    """Return position → class probabilities (Y,) of labelled images, by models that learned from the others.

    The only label of a class is never left out. Empty if no class has two labels.
    """
    folds = [fold for fold in assign_folds(run.split.labels) if len(fold)]
    found: dict[int, NDArray[np.float32]] = {}
    for number, fold in enumerate(folds):
        kept = torch.ones(len(run.split.labels), dtype=torch.bool)
        kept[fold] = False
        split = dataclasses.replace(run.split, labeled=run.split.labeled[kept], labels=run.split.labels[kept])
        trainer = Again(run, split)
        steps = trainer.settings.train.steps
        for step in range(steps):
            trainer.step()
            progress(number * steps + step + 1, len(folds) * steps)
        left_out = run.split.labeled[fold]
        found |= dict(zip(left_out.tolist(), predictions(trainer, left_out), strict=True))
        trainer.release()
    return found


@torch.no_grad()
def predictions(trainer: Trainer, index_B: Tensor) -> NDArray[np.float32]:
    """Return the class probabilities of training images by the evaluated network, (B, Y)."""
    method, network, images = trainer.method, trainer.evaluated.eval(), trainer.inputs.plain
    method.prepare(network, images[trainer.labeled_index], trainer.labels)
    probs: NDArray[np.float32] = predict(method, network, images[index_B], threads=trainer.threads).numpy()
    return probs


def gain_of_doubling(feature_LD: Tensor, labels: Tensor) -> float | None:
    """Return by how many points logistic regression is better with all labels than with half of them.

    feature_LD, labels: of the labelled images. Both are measured on images that were left out, several times, with
    random halves of each class. None if there are too few labels. A method that also learns from unlabelled images
    gains less.

    Example: `gain_of_doubling(features[split.labeled], split.labels)`.
    """
    from sklearn.linear_model import LogisticRegression

    values, known = F.normalize(feature_LD.float(), dim=1).numpy(), labels.numpy()
    generator = np.random.default_rng(0)
    right, tested = np.zeros(2), 0
    for fold in [fold.numpy() for fold in assign_folds(labels) if len(fold)] * REPEATS:
        kept = np.setdiff1d(np.arange(len(known)), fold)
        shuffled = generator.permutation(kept)
        rank = np.array([(known[shuffled[:place]] == known[one]).sum() for place, one in enumerate(shuffled)])
        sizes = np.bincount(known[kept])
        half = shuffled[rank < np.ceil(sizes[known[shuffled]] / 2)]
        tested += len(fold)
        for number, chosen in enumerate((half, kept)):
            learner = LogisticRegression(C=100, max_iter=1000).fit(values[chosen], known[chosen])
            right[number] += (learner.predict(values[fold]) == known[fold]).sum()
    return 100 * float(right[1] - right[0]) / tested if tested >= FEWEST_FOR_GAIN * REPEATS else None


def assign_folds(labels: Tensor) -> list[Tensor]:
    """Return positions among the labels, in folds with about equally many of each class; single labels are left out.

    Example: `assign_folds(torch.tensor([0, 0, 1]))` puts positions 0 and 1 into two folds.
    """
    folds: list[list[int]] = [[] for _ in range(FOLDS)]
    following = 0
    for label in labels.unique().tolist():
        members = (labels == label).nonzero().flatten().tolist()
        if len(members) < 2:
            continue
        for position in members:
            folds[following % FOLDS].append(position)
            following += 1
    return [torch.tensor(fold, dtype=torch.int64) for fold in folds]
