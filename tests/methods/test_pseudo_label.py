import pytest
import torch
from tests.methods.steps import after_steps, probabilities, record_outputs

from aggmatch.methods.pseudo_label import Config, PseudoLabel


@pytest.fixture
def trained(toy_state):
    """A trainer after a few steps, and its next batch at a tenth of the training."""
    return after_steps(toy_state("pseudo_label"), 3)


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
    outputs = record_outputs(state.online)
    method.step(batch, state.online, state.average).loss.backward()
    _, unlabeled = outputs
    m, classes = probs.shape
    expected = torch.zeros(m, classes, dtype=torch.float64)
    for i in range(m):
        for y in range(classes):
            if probs[i].max() >= threshold:
                expected[i, y] = 2 * 0.25 / m * (probs[i, y] - (1 if y == probs[i].argmax() else 0))
    assert (expected.abs().sum(1) > 0).sum() == m // 2
    torch.testing.assert_close(unlabeled.logits.grad.double(), expected, rtol=1e-3, atol=1e-7)


def test_without_confident_images_only_labels_count(trained):
    state, batch = trained
    method = PseudoLabel(Config(threshold=1.0, ramp=0.0), state.method.problem)
    result = method.step(batch, state.online, state.average)
    assert result.parts["loss_unlabeled"].item() == 0
    assert result.loss.item() == result.parts["loss_labeled"].item()
    assert result.pseudo is not None
    assert result.pseudo.weight.sum() == 0
