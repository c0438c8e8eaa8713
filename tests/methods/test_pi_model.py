import copy
from dataclasses import replace

import pytest
import torch

from aggmatch.methods.pi_model import Config, PiModel


@pytest.fixture
def trained(toy_state):
    """A state after a few steps, and its next batch at a tenth of the training."""
    state = toy_state("pi_model")
    for _ in range(3):
        state.step()
    return state, replace(state.make_batch(*state.draw_indices()), progress=torch.tensor(0.1))


def probabilities(network, images):
    """Class probabilities of one batch, normalised by its own statistics."""
    return copy.deepcopy(network).train()(images).logits.detach().double().softmax(-1)


def test_the_loss_equals_the_definition(trained):
    state, batch = trained
    method = PiModel(Config(unlabeled_weight=20.0, ramp=0.4), state.method.problem)
    labeled, first, second = (probabilities(state.online, x) for x in (*batch.labeled, *batch.unlabeled))
    loss = -sum(labeled[i, y].log() for i, y in enumerate(batch.labels.tolist())) / len(labeled)
    for i in range(len(first)):
        for y in range(3):
            loss += 20 * 0.25 * (first[i, y] - second[i, y]) ** 2 / (len(first) * 3)
    result = method.step(batch, state.online, state.average)
    assert result.parts["loss_unlabeled"] > 1e-4
    assert result.loss.item() == pytest.approx(loss.item(), rel=1e-4)
    assert result.pseudo is not None
    assert result.pseudo.target.tolist() == first.argmax(-1).tolist()
    assert result.pseudo.weight.tolist() == [1.0] * len(first)


def test_only_the_second_view_is_pulled_towards_the_first(trained):
    state, batch = trained
    method = PiModel(Config(unlabeled_weight=20.0, ramp=0.4), state.method.problem)
    target, probs = (probabilities(state.online, x) for x in batch.unlabeled)
    outputs = []
    forward = state.online.forward

    def spy(images):
        output = forward(images)
        if output.logits.requires_grad:
            output.logits.retain_grad()
        outputs.append(output.logits)
        return output

    state.online.forward = spy
    method.step(batch, state.online, state.average).loss.backward()
    _, first, second = outputs
    assert not first.requires_grad
    m, classes = probs.shape
    expected = torch.zeros(m, classes, dtype=torch.float64)
    for i in range(m):
        for y in range(classes):
            for k in range(classes):
                slope = probs[i, k] * ((1 if k == y else 0) - probs[i, y])
                expected[i, y] += 20 * 0.25 * 2 / (m * classes) * (probs[i, k] - target[i, k]) * slope
    assert expected.abs().max() > 1e-4
    torch.testing.assert_close(second.grad.double(), expected, rtol=1e-3, atol=1e-7)


def test_the_network_learns_from_unlabelled_images_alone(trained):
    state, batch = trained
    forward = state.online.forward

    def without_labels(images):
        output = forward(images)
        return output._replace(logits=output.logits.detach()) if images is batch.labeled[0] else output

    state.online.forward = without_labels
    state.method.step(batch, state.online, state.average).loss.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in state.online.parameters())


def test_equal_views_give_no_gradient(trained):
    state, batch = trained
    result = state.method.step(replace(batch, unlabeled=batch.unlabeled[:1] * 2), state.online, state.average)
    assert result.parts["loss_unlabeled"].item() == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize(
    ("progress", "ramp", "weight"),
    [(0.0, 0.4, 0.0), (0.2, 0.4, 0.5), (0.4, 0.4, 1.0), (0.9, 0.4, 1.0), (0.0, 0.0, 1.0)],
)
def test_the_weight_of_the_unlabelled_loss_follows_the_ramp(trained, progress, ramp, weight):
    state, batch = trained
    method = PiModel(Config(unlabeled_weight=30.0, ramp=ramp), state.method.problem)
    result = method.step(replace(batch, progress=torch.tensor(progress)), state.online, state.average)
    unlabeled = result.loss - result.parts["loss_labeled"]
    assert result.parts["loss_unlabeled"] > 1e-4
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


def test_a_batch_has_two_views_of_as_many_unlabelled_images_as_labelled_ones():
    assert PiModel.defaults == {"train.unlabeled_ratio": 1}
    assert PiModel.views.unlabeled == ("weak", "weak")
