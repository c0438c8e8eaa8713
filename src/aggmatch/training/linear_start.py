"""The classifier with which fine-tuning starts: linear, and learned on the features of the pretrained backbone."""

import torch
from torch import Tensor

from aggmatch.data import Split
from aggmatch.evaluation import evaluating
from aggmatch.features.self_training import LinearClassifier, drawn, self_trained
from aggmatch.features.store import batch_of, in_parallel
from aggmatch.progress import following
from aggmatch.training.trainer import Trainer


def start_linearly(state: Trainer, split: Split, before: LinearClassifier | None = None) -> None:
    """Give both networks of a run that has not begun a classifier that trained itself on the features they have now.

    before: see `self_trained`. A method that learns from labels alone gets a classifier that did so too.
    """
    unlabeled = split.unlabeled if state.method.views.unlabeled else split.unlabeled[:0]
    features = features_at(state, torch.cat([split.labeled, drawn(unlabeled, split.labeled)]))
    positions = torch.arange(len(split.labeled), device=state.device)
    found = self_trained(features, positions, state.labels, state.online.classes, before)
    for name, value in found._asdict().items():
        same = state.processes.gather(value)[0] if state.processes.connected else value
        for network in (state.online, state.average):
            with torch.no_grad():
                network.classifier.get_parameter(name).copy_(same)


def features_at(state: Trainer, index: Tensor) -> Tensor:
    """Return the features, (B, D), of the training images at these positions, as the classifier gets them."""
    images, network = state.inputs.plain, state.online
    batches = index.to(state.device).split(batch_of(network, images.shape[-1]))
    done = 0

    with following(None, "Computing features", "images") as report, evaluating(network, state.threads):

        def features_of(number: int) -> Tensor:
            nonlocal done
            with torch.no_grad():  # it holds for one thread
                feature = network(images[batches[number]]).feature
            done += len(feature)
            report(done, len(index))
            return feature

        return torch.cat(in_parallel(features_of, len(batches), state.device))
