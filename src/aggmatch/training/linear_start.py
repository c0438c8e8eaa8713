"""The classifier with which fine-tuning starts: linear, and learned on the features of the pretrained backbone."""

import torch

from aggmatch.data import Split
from aggmatch.features.self_training import LinearClassifier, drawn, self_trained
from aggmatch.features.store import FeatureStore
from aggmatch.training.inputs import FeatureInputs, pretrained_store
from aggmatch.training.trainer import Trainer


def start_linearly(state: Trainer, split: Split, before: LinearClassifier | None = None) -> None:
    """Give both networks of a run that has not begun a classifier that trained itself on pretrained features.

    before: see `self_trained`. A method that learns from labels alone gets a classifier that did so too.
    """
    unlabeled = split.unlabeled if state.method.views.unlabeled else split.unlabeled[:0]
    index = torch.cat([split.labeled, drawn(unlabeled, split.labeled)])
    with state.processes.first_alone():  # it stores the features, which the others find
        features = store_before(state).averaged(state.data.train.pixels[index]).to(state.device)
    positions = torch.arange(len(split.labeled), device=state.device)
    found = self_trained(features, positions, state.labels, state.online.classes, before)
    for name, value in found._asdict().items():
        same = state.processes.gather(value)[0] if state.processes.connected else value
        for network in (state.online, state.average):
            with torch.no_grad():
                network.classifier.get_parameter(name).copy_(same)


def store_before(state: Trainer) -> FeatureStore:
    """Return the store of features of the pretrained backbone of a run, as it is before fine-tuning."""
    if isinstance(state.inputs, FeatureInputs):
        return state.inputs.store
    data = state.data
    return pretrained_store(
        state.settings, data.train.pixels, classes=state.online.classes, mirror=data.mirror, device=state.device
    )
