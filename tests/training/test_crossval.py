"""Folds of cross-validation, and what more labels would bring."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from aggmatch.training.crossval import FOLDS, assign_folds, gain_of_doubling


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60))
def test_every_class_keeps_a_label_and_every_label_is_left_out_once(labels):
    tensor = torch.tensor(labels)
    folds = assign_folds(tensor)
    assert len(folds) == FOLDS
    left_out = torch.cat(folds).tolist()
    single = [position for position, label in enumerate(labels) if labels.count(label) == 1]
    assert sorted(left_out) == [position for position in range(len(labels)) if position not in single]
    for fold in folds:
        kept = set(range(len(labels))) - set(fold.tolist())
        assert {labels[position] for position in kept} == set(labels)


def test_folds_have_about_the_same_size():
    sizes = [len(fold) for fold in assign_folds(torch.tensor([0] * 7 + [1] * 7))]
    assert max(sizes) - min(sizes) <= 1


def clusters(count: int, noise: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of two classes."""
    labels = torch.arange(count) % 2
    means = torch.eye(40)[:2] * 3
    return means[labels] + noise * torch.randn(count, 40, generator=torch.Generator().manual_seed(0)), labels


def test_more_labels_help_where_classes_are_hard_and_not_where_they_are_easy():
    hard = gain_of_doubling(*clusters(60, 2.0))
    assert hard is not None
    assert hard > 3
    assert gain_of_doubling(*clusters(60, 0.1)) == 0


def test_few_labels_say_nothing():
    assert gain_of_doubling(*clusters(10, 1.0)) is None
