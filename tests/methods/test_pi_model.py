"""The consistency of two views: the Π-Model and Mean Teacher, which differ in the network that gives the target."""

from dataclasses import replace

import pytest
import torch
from tests.methods.steps import after_steps, probabilities, record_outputs

from aggmatch.methods import load_method


@pytest.fixture(params=["pi_model", "mean_teacher"])
def trained(request, toy_state):
    """A trainer after a few steps, when the average differs from the network, its next batch, and its teacher."""
    state, batch = after_steps(toy_state(request.param, method__unlabeled_weight=20.0, method__ramp=0.4), 6)
    return state, batch, state.online if request.param == "pi_model" else state.average


def test_the_loss_equals_the_definition(trained):
    state, batch, teacher = trained
    labeled = probabilities(state.online, batch.labeled[0])
    first, second = probabilities(teacher, batch.unlabeled[0]), probabilities(state.online, batch.unlabeled[1])
    loss = -sum(labeled[i, y].log() for i, y in enumerate(batch.labels.tolist())) / len(labeled)
    for i in range(len(first)):
        for y in range(3):
            loss += 20 * 0.25 * (first[i, y] - second[i, y]) ** 2 / (len(first) * 3)
    result = state.method.step(batch, state.online, state.average)
    assert result.parts["loss_unlabeled"] > 1e-4
    assert result.loss.item() == pytest.approx(loss.item(), rel=1e-4)
    assert result.pseudo is not None
    assert result.pseudo.target.tolist() == first.argmax(-1).tolist()
    assert result.pseudo.weight.tolist() == [1.0] * len(first)


def test_only_the_second_view_is_pulled_towards_the_target(trained):
    # Prediction and target both from the teacher, a known mistake, would leave the student without this gradient.
    state, batch, teacher = trained
    target, probs = probabilities(teacher, batch.unlabeled[0]), probabilities(state.online, batch.unlabeled[1])
    of_student = record_outputs(state.online)
    of_average = record_outputs(state.average)
    state.method.step(batch, state.online, state.average).loss.backward()
    first, second = of_average + of_student[1:]  # the first output is that of labelled images
    assert not first.logits.requires_grad
    m, classes = probs.shape
    expected = torch.zeros(m, classes, dtype=torch.float64)
    for i in range(m):
        for y in range(classes):
            for k in range(classes):
                slope = probs[i, k] * ((1 if k == y else 0) - probs[i, y])
                expected[i, y] += 20 * 0.25 * 2 / (m * classes) * (probs[i, k] - target[i, k]) * slope
    assert expected.abs().max() > 1e-4
    torch.testing.assert_close(second.logits.grad.double(), expected, rtol=1e-3, atol=1e-7)


def test_equal_views_give_no_loss_if_the_network_teaches_itself(toy_state):
    state, batch = after_steps(toy_state("pi_model"), 3)
    result = state.method.step(replace(batch, unlabeled=batch.unlabeled[:1] * 2), state.online, state.average)
    assert result.parts["loss_unlabeled"].item() == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize(("name", "weight"), [("pi_model", 10.0), ("mean_teacher", 50.0)])
def test_the_default_weights_are_those_of_published_reruns(name, weight):
    config = load_method(name).config_type().to_dict()
    assert config == {"unlabeled_weight": weight, "ramp": 0.4}
