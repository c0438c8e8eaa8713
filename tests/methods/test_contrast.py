import pytest
import torch
import torch.nn.functional as F
from tests.methods.steps import next_batch

from aggmatch.methods.start.contrast import contrast_loss

PHASE = {"method__contrast_steps": 10}


def test_the_loss_equals_a_computation_by_hand():
    crop = F.normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(1)), dim=-1)
    expected = 0.0
    for number in range(6):
        other = (number + 3) % 6
        scores = {k: torch.exp(crop[number] @ crop[k] / 0.2).item() for k in range(6) if k != number}
        expected -= torch.tensor(scores[other] / sum(scores.values())).log().item() / 6
    assert contrast_loss(crop, 0.2).item() == pytest.approx(expected, rel=1e-5)


def test_the_loss_is_smallest_if_the_crops_of_an_image_are_alike_and_others_differ():
    distinct = torch.eye(4)
    alike = contrast_loss(torch.cat([distinct, distinct]), 0.2)
    mixed = contrast_loss(torch.cat([distinct, distinct.roll(1, 0)]), 0.2)
    assert alike < 0.1 < mixed


def test_labels_train_the_classifier_and_nothing_else(toy_state):
    gradients = []
    for shift in (0, 1):
        state = toy_state("aggmatch", **PHASE)
        state.labels = (state.labels + shift) % 3
        state.method.refresh(0)
        batch = next_batch(state)
        state.method.step(batch, state.online, state.average).loss.backward()
        gradients.append({name: weight.grad for name, weight in state.online.named_parameters()})
    first, second = gradients
    assert any(name.startswith("head.") for name in first)
    for name, gradient in first.items():
        assert torch.equal(gradient, second[name]) == (not name.startswith("classifier.")), name


def test_the_phase_learns_to_recognise_crops(toy_state):
    state = toy_state("fixmatch", method__contrast_steps=39)
    losses = []
    for _ in range(30):
        state.step()
        losses.append(state.meters.read()["loss_contrast"])
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
