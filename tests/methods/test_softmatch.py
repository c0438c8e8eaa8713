import math

import pytest
import torch
from tests.methods.steps import next_batch, step_result

from aggmatch.methods.fixmatch import Config as FixMatchConfig
from aggmatch.methods.fixmatch import FixMatch
from aggmatch.methods.softmatch import Config, SoftMatch

PROBS = torch.tensor([[0.9, 0.05, 0.05], [0.6, 0.3, 0.1], [0.4, 0.35, 0.25]])


def method(state, **settings) -> SoftMatch:
    return SoftMatch(Config(**settings), state.method.problem)


def test_weights_by_hand(toy_state):
    softmatch = method(toy_state("softmatch"), momentum=1.0, alignment="none")
    softmatch.confidence.fill_(0.7)
    softmatch.variance.fill_(0.04)
    weights = softmatch.weight(PROBS, PROBS).tolist()
    assert weights == pytest.approx([1, math.exp(-(0.1**2) / (2 * 0.01)), math.exp(-(0.3**2) / (2 * 0.01))], rel=1e-4)


def test_running_statistics_are_those_of_unaligned_confidence(toy_state):
    softmatch = method(toy_state("softmatch"), momentum=0.0)
    softmatch.weight(PROBS, PROBS)
    confidence = PROBS.amax(-1)
    assert softmatch.confidence.item() == pytest.approx(confidence.mean().item())
    assert softmatch.variance.item() == pytest.approx(confidence.var().item())
    assert softmatch.probs.tolist() == pytest.approx(PROBS.mean(0).tolist())


def test_alignment_changes_the_weight_and_not_the_label(toy_state):
    state = toy_state("softmatch")
    softmatch = method(state)
    softmatch.probs.copy_(torch.tensor([0.98, 0.01, 0.01]))
    batch = next_batch(state)
    weak = state.online(torch.cat([*batch.labeled, batch.unlabeled[1], batch.unlabeled[0]])).logits[
        -len(batch.unlabeled[0]) :
    ]
    result = softmatch.step(batch, state.online, state.average)
    assert result.pseudo is not None
    assert torch.equal(result.pseudo.target, weak.argmax(-1))


def test_a_variance_near_zero_gives_fixmatch_with_the_mean_as_threshold(toy_state):
    state = toy_state("softmatch")
    batch = next_batch(state)
    softmatch = method(state, momentum=1.0, alignment="none")
    softmatch.confidence.fill_(0.4)
    softmatch.variance.fill_(1e-12)
    fixmatch = FixMatch(FixMatchConfig(threshold=0.4), state.method.problem)
    ours, theirs = (each.step(batch, state.online, state.average) for each in (softmatch, fixmatch))
    assert ours.loss.item() == pytest.approx(theirs.loss.item())


def test_a_huge_variance_gives_plain_pseudo_labels(toy_state):
    softmatch = method(toy_state("softmatch"), momentum=1.0)
    softmatch.confidence.fill_(1.0)
    softmatch.variance.fill_(1e9)
    assert softmatch.weight(PROBS, PROBS).tolist() == pytest.approx([1, 1, 1])


def test_weights_lie_between_zero_and_one(toy_state):
    softmatch = method(toy_state("softmatch"))
    for seed in range(5):
        probs = torch.randn(50, 3, generator=torch.Generator().manual_seed(seed)).mul(3).softmax(-1)
        weight = softmatch.weight(probs, probs)
        assert 0 < weight.min() <= weight.max() <= 1


def test_the_variance_of_a_single_image_is_zero(toy_state):
    softmatch = method(toy_state("softmatch"), momentum=0.5, alignment="none")
    weight = softmatch.weight(PROBS[:1], PROBS)
    assert softmatch.variance.item() == pytest.approx(0.5)
    assert weight.tolist() == [1]


def test_a_variance_of_zero_gives_a_threshold_at_the_mean(toy_state):
    softmatch = method(toy_state("softmatch"), momentum=1.0, alignment="none")
    softmatch.confidence.copy_(PROBS[1, 0])
    softmatch.variance.zero_()
    assert softmatch.weight(PROBS, PROBS).tolist() == [1, 1, 0]


def test_steps_with_one_unlabelled_image_are_finite(toy_state):
    state = toy_state("softmatch", train__batch=1, train__unlabeled_ratio=1, method__momentum=0.0)
    for _ in range(3):
        state.step()
    assert state.meters.first_bad_value() is None
    assert state.method.variance == 0


def test_the_running_mean_and_variance_are_logged(toy_state):
    state = toy_state("softmatch", method__momentum=0.5)
    parts = step_result(state).parts
    assert (parts["running_confidence"], parts["variance"]) == (state.method.confidence, state.method.variance)
