"""What the methods share that ramp up the unlabelled loss and take running statistics from labelled batches."""

import copy
from dataclasses import replace

import pytest
import torch
from tests.methods.steps import after_steps

from aggmatch.methods import load_method

VIEWS = {"pi_model": ("weak", "weak"), "mean_teacher": ("weak", "weak"), "pseudo_label": ("weak",)}


@pytest.fixture(params=VIEWS)
def trained(request, toy_state):
    """A trainer after a few steps, and its next batch at a tenth of the training."""
    return after_steps(toy_state(request.param, **all_images(request.param)), 6)


def all_images(name):
    """Settings with which every unlabelled image counts."""
    return {"method__threshold": 0.0} if name == "pseudo_label" else {}


def test_the_network_learns_from_unlabelled_images_alone(trained):
    state, batch = trained
    forward = state.online.forward

    def without_labels(images):
        output = forward(images)
        return output._replace(logits=output.logits.detach()) if images is batch.labeled[0] else output

    state.online.forward = without_labels
    state.method.step(batch, state.online, state.average).loss.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in state.online.parameters())


@pytest.mark.parametrize(
    ("progress", "ramp", "weight"),
    [(0.0, 0.4, 0.0), (0.2, 0.4, 0.5), (0.4, 0.4, 1.0), (0.9, 0.4, 1.0), (0.0, 0.0, 1.0)],
)
def test_the_weight_of_the_unlabelled_loss_follows_the_ramp(trained, progress, ramp, weight):
    state, batch = trained
    config = replace(state.method.config, unlabeled_weight=30.0, ramp=ramp)
    method = type(state.method)(config, state.method.problem)
    result = method.step(replace(batch, progress=torch.tensor(progress)), state.online, state.average)
    unlabeled = result.loss - result.parts["loss_labeled"]
    assert result.parts["loss_unlabeled"] > 1e-5
    assert unlabeled.item() == pytest.approx(30 * weight * result.parts["loss_unlabeled"].item(), rel=1e-4, abs=1e-6)
    assert result.parts["ramp"].item() == pytest.approx(weight)


def test_running_statistics_are_those_of_labelled_images(trained):
    state, batch = trained
    expected = copy.deepcopy(state.online).train()
    expected(batch.labeled[0])
    state.method.step(batch, state.online, state.average)
    for name, buffer in state.online.named_buffers():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(buffer, expected.get_buffer(name)), name


@pytest.mark.parametrize("name", VIEWS)
def test_a_batch_has_as_many_unlabelled_images_as_labelled_ones(name):
    method = load_method(name)
    assert method.defaults == {"train.unlabeled_ratio": 1}
    assert method.views.unlabeled == VIEWS[name]
