import copy
from dataclasses import replace

import pytest
import torch

from aggmatch.methods.pseudo_label import Config, PseudoLabel


@pytest.fixture
def trained(toy_state):
    """A state after a few steps, and its next batch at a tenth of the training."""
    state = toy_state("pseudo_label")
    for _ in range(3):
        state.step()
    return state, replace(state.make_batch(*state.draw_indices()), progress=torch.tensor(0.1))


def probabilities(network, images):
    """Class probabilities of one batch, normalised by its own statistics."""
    return copy.deepcopy(network).train()(images).logits.detach().double().softmax(-1)


def median_confidence(state, batch):
    """A threshold that half of the unlabelled images pass."""
    confidence = probabilities(state.online, batch.unlabeled[0]).max(-1).values.sort().values
    half = len(confidence) // 2
    return confidence[half - 1 : half + 1].mean().item()


def test_the_loss_equals_the_definition(trained):
    state, batch = trained
    threshold = median_confidence(state, batch)
    method = PseudoLabel(Config(threshold=threshold, unlabeled_weight=2.0, ramp=0.4), state.method.problem)
    labeled = probabilities(state.online, batch.labeled[0])
    unlabeled = probabilities(state.online, batch.unlabeled[0])
    n, m = len(labeled), len(unlabeled)
    loss = -sum(labeled[i, y].log() for i, y in enumerate(batch.labels.tolist())) / n
    for i in range(m):
        if unlabeled[i].max() >= threshold:
            loss -= 2 * 0.25 * unlabeled[i].max().log() / m
    result = method.step(batch, state.online, state.average)
    assert result.loss.item() == pytest.approx(loss.item(), rel=1e-4)
    assert result.pseudo is not None
    assert result.pseudo.weight.sum().item() == m // 2
    assert result.pseudo.target.tolist() == unlabeled.argmax(-1).tolist()


def test_only_confident_images_have_a_gradient(trained):
    state, batch = trained
    threshold = median_confidence(state, batch)
    method = PseudoLabel(Config(threshold=threshold, unlabeled_weight=2.0, ramp=0.4), state.method.problem)
    probs = probabilities(state.online, batch.unlabeled[0])
    outputs = []
    forward = state.online.forward

    def spy(images):
        output = forward(images)
        output.logits.retain_grad()
        outputs.append(output.logits)
        return output

    state.online.forward = spy
    method.step(batch, state.online, state.average).loss.backward()
    _, unlabeled = outputs
    m, classes = probs.shape
    expected = torch.zeros(m, classes, dtype=torch.float64)
    for i in range(m):
        for y in range(classes):
            if probs[i].max() >= threshold:
                expected[i, y] = 2 * 0.25 / m * (probs[i, y] - (1 if y == probs[i].argmax() else 0))
    assert (expected.abs().sum(1) > 0).sum() == m // 2
    torch.testing.assert_close(unlabeled.grad.double(), expected, rtol=1e-3, atol=1e-7)


def test_the_network_learns_from_unlabelled_images_alone(trained):
    state, batch = trained
    method = PseudoLabel(Config(threshold=0.0), state.method.problem)
    forward = state.online.forward

    def without_labels(images):
        output = forward(images)
        return output._replace(logits=output.logits.detach()) if images is batch.labeled[0] else output

    state.online.forward = without_labels
    method.step(batch, state.online, state.average).loss.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in state.online.parameters())


def test_without_confident_images_only_labels_count(trained):
    state, batch = trained
    method = PseudoLabel(Config(threshold=1.0, ramp=0.0), state.method.problem)
    result = method.step(batch, state.online, state.average)
    assert result.parts["loss_unlabeled"].item() == 0
    assert result.loss.item() == result.parts["loss_labeled"].item()
    assert result.pseudo is not None
    assert result.pseudo.weight.sum() == 0


@pytest.mark.parametrize(
    ("progress", "ramp", "weight"),
    [(0.0, 0.4, 0.0), (0.2, 0.4, 0.5), (0.4, 0.4, 1.0), (0.9, 0.4, 1.0), (0.0, 0.0, 1.0)],
)
def test_the_weight_of_the_unlabelled_loss_follows_the_ramp(trained, progress, ramp, weight):
    state, batch = trained
    method = PseudoLabel(Config(threshold=0.0, unlabeled_weight=3.0, ramp=ramp), state.method.problem)
    result = method.step(replace(batch, progress=torch.tensor(progress)), state.online, state.average)
    unlabeled = result.loss - result.parts["loss_labeled"]
    assert result.parts["loss_unlabeled"] > 0
    assert unlabeled.item() == pytest.approx(3 * weight * result.parts["loss_unlabeled"].item(), rel=1e-4, abs=1e-6)
    assert result.parts["ramp"].item() == pytest.approx(weight)


def test_running_statistics_are_those_of_labelled_images(trained):
    state, batch = trained
    expected = copy.deepcopy(state.online).train()
    expected(batch.labeled[0])
    state.method.step(batch, state.online, state.average)
    for name, buffer in state.online.named_buffers():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(buffer, expected.get_buffer(name)), name


def test_a_batch_has_as_many_unlabelled_images_as_labelled_ones():
    assert PseudoLabel.defaults == {"train.unlabeled_ratio": 1}
    assert PseudoLabel.views.unlabeled == ("weak",)
