"""The classifier with which fine-tuning starts: linear, and learned on the features of the pretrained backbone."""

import torch

from aggmatch.data import Split
from aggmatch.features.self_training import LinearClassifier, drawn, self_trained
from aggmatch.training.inputs import pretrained_store
from aggmatch.training.trainer import Trainer


def start_linearly(state: Trainer, split: Split, before: LinearClassifier | None = None) -> None:
    """Give both networks of a run that has not begun a classifier that trained itself on pretrained features.

    before: see `self_trained`. A method that learns from labels alone gets a classifier that did so too.
    """
    unlabeled = split.unlabeled if state.method.views.unlabeled else split.unlabeled[:0]
    index, pixels = torch.cat([split.labeled, drawn(unlabeled, split.labeled)]), state.data.train.pixels
    with state.processes.first_alone():  # it stores the features, which the others find
        features = pretrained_store(state.settings, pixels, state.device).plain(pixels[index])
    positions = torch.arange(len(split.labeled), device=state.device)
    found = self_trained(features.float().to(state.device), positions, state.labels, state.online.classes, before)
    for name, value in found._asdict().items():
        same = state.processes.gather(value)[0] if state.processes.connected else value
        for network in (state.online, state.average):
            with torch.no_grad():
                network.classifier.get_parameter(name).copy_(same)
