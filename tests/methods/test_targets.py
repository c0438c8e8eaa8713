"""What the methods that build on FixMatch have in common: targets without gradient, and steps that accept nothing."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.methods.steps import after_steps, check_same_training, next_batch, record_outputs

from aggmatch.methods import load_method

NOTHING = {
    "fixmatch": {"threshold": 1.0},
    "fixmatch_da": {"threshold": 1.0},
    "shrinkmatch": {"threshold": 1.0},
    "flexmatch": {"lowest_threshold": 1.0},
    "freematch": {"lowest_threshold": 1.0},
    "comatch": {"threshold": 1.0},
    "simmatch": {"threshold": 1.0},
}
"""Settings with which no pseudo label is accepted, for the methods that have a threshold."""
OTHER_LOSSES = {
    "freematch": "fairness_weight",
    "shrinkmatch": "shrinking_weight",
    "comatch": "contrast_weight",
    "simmatch": "instance_weight",
}
"""Weights of further losses of unlabelled images."""
RIVALS = [*NOTHING, "softmatch"]


def dotted(settings):
    return {f"method__{key}": value for key, value in settings.items()}


@pytest.mark.parametrize("name", RIVALS)
def test_no_gradient_reaches_the_target(name, toy_state):
    state, batch = after_steps(toy_state(name), 4)
    outputs = record_outputs(state.online)
    state.method.step(batch, state.online, state.average).loss.backward()
    (joint,) = outputs
    weak = len(batch.unlabeled_index)
    for values in (joint.logits, joint.feature):
        assert values.grad[:-weak].abs().sum() > 0
        assert values.grad[-weak:].abs().sum() == 0, "the weak views come last"


@pytest.mark.parametrize("name", NOTHING)
def test_a_step_that_accepts_nothing_learns_from_the_labels_and_is_finite(name, toy_state):
    state, batch = after_steps(toy_state(name, **dotted(NOTHING[name])), 4)
    result = state.method.step(batch, state.online, state.average)
    result.loss.backward()
    assert result.pseudo.weight.sum() == 0
    assert result.parts["loss_unlabeled"] == 0
    gradients = [weight.grad for weight in state.online.parameters() if weight.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("name", NOTHING)
def test_without_further_losses_such_a_step_has_the_gradient_of_the_labels(name, toy_state):
    off = {OTHER_LOSSES[name]: 0.0} if name in OTHER_LOSSES else {}
    state, batch = after_steps(toy_state(name, **dotted(NOTHING[name] | off)), 4)
    result = state.method.step(batch, state.online, state.average)
    assert result.loss.item() == result.parts["loss_labeled"].item()


@pytest.mark.parametrize("threshold", [0.0, 0.4])
def test_aligned_fixmatch_equals_the_definition(threshold, toy_state):
    """Number by number, over steps enough to fill and overwrite the window."""
    state = toy_state("fixmatch_da", method__window=3, method__threshold=threshold)
    means: list[list[float]] = []
    for _ in range(5):
        batch = next_batch(state)
        weak_view, strong_view = batch.unlabeled
        images = torch.cat([*batch.labeled, strong_view, weak_view])
        joint = copy.deepcopy(state.online)(images).logits.detach().double()
        labeled, strong, weak = joint.split([len(batch.labels), len(strong_view), len(weak_view)])
        rows = weak.softmax(-1).tolist()
        means = [*means, [sum(column) / len(rows) for column in zip(*rows, strict=True)]][-3:]
        mean = [sum(column) / len(means) for column in zip(*means, strict=True)]
        loss = 0.0
        for row, log_strong in zip(rows, strong.log_softmax(-1).tolist(), strict=True):
            scaled = [q * (1 / 3 + 1e-6) / (m + 1e-6) for q, m in zip(row, mean, strict=True)]
            aligned = [value / sum(scaled) for value in scaled]
            if max(aligned) >= threshold:
                loss -= sum(a * log for a, log in zip(aligned, log_strong, strict=True)) / len(rows)
        result = state.method.step(batch, state.online, state.average)
        assert result.parts["loss_unlabeled"].item() == pytest.approx(loss, rel=1e-4)
        expected = F.cross_entropy(labeled, batch.labels).item() + loss
        assert result.loss.item() == pytest.approx(expected, rel=1e-4)


def test_aligned_fixmatch_is_fixmatch_with_two_settings(toy_state):
    same = toy_state("fixmatch", method__alignment="uniform", method__targets="soft")
    check_same_training(toy_state("fixmatch_da"), same)
    assert issubclass(load_method("fixmatch_da"), load_method("fixmatch"))
