import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aggmatch.functional import (
    PseudoLabels,
    consensus_confidence,
    entropy,
    linear_ramp,
    score_pseudo_labels,
    separation,
    sharpen,
    soft_cross_entropy,
)


def random_probs(*shape: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return torch.softmax(scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), -1)


def test_sharpening_with_one_half_squares_and_renormalises():
    probs = torch.tensor([[0.6, 0.3, 0.1]])
    squares = torch.tensor([[0.36, 0.09, 0.01]])
    torch.testing.assert_close(sharpen(probs, 0.5), squares / 0.46)


def test_sharpening_with_temperature_one_changes_nothing():
    probs = random_probs(5, 7)
    torch.testing.assert_close(sharpen(probs, 1.0), probs)


def test_sharpening_keeps_zero_at_zero_and_survives_a_tiny_temperature():
    probs = torch.tensor([[0.0, 0.4, 0.6], [0.0, 0.0, 1.0]])
    result = sharpen(probs, 1e-3)
    torch.testing.assert_close(result, torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]))


@given(st.floats(0.05, 1.0), st.integers(0, 1000))
def test_sharpening_keeps_the_order_and_never_flattens(temperature, seed):
    probs = random_probs(4, 6, seed=seed)
    sharp = sharpen(probs, temperature)
    assert torch.equal(sharp.argmax(-1), probs.argmax(-1))
    assert (entropy(sharp) <= entropy(probs) + 1e-5).all()
    torch.testing.assert_close(sharp.sum(-1), torch.ones(4))


def test_soft_cross_entropy_of_a_hand_computed_case():
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25]]))
    target = torch.tensor([[0.5, 0.5, 0.0]])
    expected = -0.5 * math.log(0.5) - 0.5 * math.log(0.25)
    torch.testing.assert_close(soft_cross_entropy(target, logits), torch.tensor([expected]))


def test_soft_cross_entropy_with_one_hot_targets_is_the_usual_one():
    logits, target = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    one_hot = torch.nn.functional.one_hot(target, 4).float()
    expected = torch.nn.functional.cross_entropy(logits, target, reduction="none")
    torch.testing.assert_close(soft_cross_entropy(one_hot, logits), expected)


def test_soft_cross_entropy_sends_no_gradient_to_its_target():
    target = torch.full((2, 3), 1 / 3, requires_grad=True)
    logits = torch.zeros(2, 3, requires_grad=True)
    soft_cross_entropy(target, logits + torch.tensor([1.0, 0.0, 0.0])).sum().backward()
    assert target.grad is None
    assert logits.grad is not None
    assert logits.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("votes", "confidence"),
    [
        ([1.0, 0.0, 0.0], 1.0),
        ([0.5, 0.5, 0.0], 0.5),
        ([0.25, 0.75, 0.0], 0.25**0.25 * 0.75**0.75),
        ([1 / 3] * 3, 1 / 3),
    ],
)
def test_confidence_is_the_exponential_of_the_negative_vote_entropy(votes, confidence):
    assert consensus_confidence(torch.tensor([votes])).item() == pytest.approx(confidence)


def test_scores_of_pseudo_labels_in_a_hand_computed_case():
    target, truth = torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 1, 2])
    scores = score_pseudo_labels(PseudoLabels(target, torch.tensor([1.0, 0.5, 0.5, 0.0])), truth, 3)
    assert scores["recall"].item() == 1.5 / 4
    assert scores["coverage"].item() == 2 / 4
    assert scores["by_class"].tolist() == [1 / 4, 0.5 / 4, 0.5 / 4]
    assert scores["pairs"].item() == 3 / 16
    assert scores["ordered"].item() == 1.5 / 16, "one right above the wrong one, one equal, one below"


def test_without_the_truth_there_are_coverage_and_classes_alone():
    scores = score_pseudo_labels(PseudoLabels(torch.tensor([0, 1]), torch.tensor([1.0, 0.5])), None, 3)
    assert {name: score.tolist() for name, score in scores.items()} == {"coverage": 0.75, "by_class": [0.5, 0.25, 0]}


def test_scores_with_nothing_kept_are_zero_not_nan():
    scores = score_pseudo_labels(PseudoLabels(torch.tensor([0]), torch.tensor([0.0])), torch.tensor([1]), 2)
    assert all(not score.any() for score in scores.values())


@pytest.mark.parametrize("levels", [2, 5, 10**6], ids=["a mask", "many ties", "no ties"])
def test_the_auc_is_the_share_of_pairs_in_which_the_right_one_weighs_more(levels):
    generator = torch.Generator().manual_seed(levels)
    weight = torch.randint(levels, (57,), generator=generator) / levels
    right = torch.rand(57, generator=generator) < weight
    pairs = [(high > low) + (high == low) / 2 for high in weight[right].tolist() for low in weight[~right].tolist()]
    found = separation(weight, right)
    assert (found["ordered"] / found["pairs"]).item() == pytest.approx(sum(pairs) / len(pairs))


def test_tenths_by_weight_have_the_smallest_weights_first():
    weight = torch.arange(40).float()[torch.randperm(40, generator=torch.Generator().manual_seed(0))]
    found = separation(weight, weight >= 10)
    assert found["precision_by_weight"].tolist() == pytest.approx([0, 0, 0.5, *[1] * 7])


@pytest.mark.parametrize("count", [1, 7, 10, 448])
def test_tenths_are_equal_groups_of_any_number_of_pseudo_labels(count):
    generator = torch.Generator().manual_seed(count)
    right = torch.rand(count, generator=generator) < 0.5
    tenths = separation(torch.rand(count, generator=generator), right)["precision_by_weight"]
    assert tenths.mean().item() == pytest.approx(right.float().mean().item())
    assert tenths.min() >= 0
    assert tenths.max() <= 1 + 1e-5


def test_equal_weights_have_no_order():
    mask = torch.tensor([1.0] * 10 + [0.0] * 10)
    right = torch.tensor([True] * 9 + [False] + [True] * 2 + [False] * 8)
    for order in (torch.arange(20), torch.arange(20).flip(0)):
        tenths = separation(mask[order], right[order])["precision_by_weight"]
        assert tenths.tolist() == pytest.approx([0.2] * 5 + [0.9] * 5)


@pytest.mark.parametrize(
    ("progress", "share", "weight"),
    [(0.0, 0.4, 0.0), (0.1, 0.4, 0.25), (0.4, 0.4, 1.0), (0.7, 0.4, 1.0), (0.5, 1.0, 0.5), (0.0, 0.0, 1.0)],
)
def test_a_linear_ramp_reaches_one_after_its_share_of_the_steps(progress, share, weight):
    ramp = linear_ramp(torch.tensor(progress), share)
    assert ramp.ndim == 0
    assert ramp.item() == pytest.approx(weight)


@given(st.floats(0, 1), st.floats(0, 1), st.just(0.0) | st.floats(1e-6, 1))
def test_a_linear_ramp_never_falls_and_stays_between_zero_and_one(early, late, share):
    early, late = sorted((early, late))
    low, high = linear_ramp(torch.tensor([early, late]), share)
    assert 0 <= low <= high <= 1
