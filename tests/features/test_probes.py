"""Classic learners on frozen features."""

import torch

from aggmatch.features.probes import probe_accuracies


def clusters(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points around three directions, and which one each belongs to."""
    labels = torch.arange(count) % 3
    noise = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return torch.eye(4)[labels] * 8 + noise, labels


def test_separate_clusters_are_learned_by_all():
    (train, truth), (test, wanted) = clusters(90, 0), clusters(60, 1)
    found = probe_accuracies(train, train, truth[:6], test, wanted)
    assert list(found) == ["logistic regression", "LabelSpreading", "self-training"]
    assert min(found.values()) > 96


def test_wrong_labels_are_learned_as_they_are_given():
    (train, truth), (test, wanted) = clusters(90, 0), clusters(60, 1)
    found = probe_accuracies(train, train, (truth[:6] + 1) % 3, test, wanted)
    assert max(found.values()) < 10


def test_one_class_cannot_be_learned():
    train, truth = clusters(9, 0)
    assert probe_accuracies(train, train, truth[[0, 3]], train, truth) == {}
