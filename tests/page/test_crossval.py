"""Folds of cross-validation."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from aggmatch.page.crossval import FOLDS, assign_folds


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
