import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.methods.steps import next_batch, step_result

from aggmatch.methods.fixmatch_da import AlignedFixMatch as FixMatch
from aggmatch.methods.fixmatch_da import Config as FixMatchConfig
from aggmatch.methods.simmatch import UNSEEN


@pytest.fixture
def ready(toy_state):
    """A state whose method has seen every labelled image."""
    state = toy_state("simmatch")
    while (state.method.label == UNSEEN).any():
        state.step()
    return state


def test_targets_by_hand(ready):
    method = ready.method
    method.label.copy_(torch.tensor([0, 0, 1, 1, 2, 2]))
    weight = torch.tensor([[0.3, 0.1, 0.2, 0.1, 0.2, 0.1]])
    probs = torch.tensor([[0.5, 0.3, 0.2]])
    instance, classes = method.targets(weight, probs)
    product = weight[0] * torch.tensor([0.5, 0.5, 0.3, 0.3, 0.2, 0.2])
    torch.testing.assert_close(instance[0], product / product.sum())
    torch.testing.assert_close(classes[0], 0.9 * probs[0] + 0.1 * torch.tensor([0.4, 0.3, 0.3]))


def test_targets_are_distributions_even_if_no_image_has_the_predicted_class(ready):
    ready.method.label.fill_(0)
    instance, classes = ready.method.targets(torch.full((1, 6), 1 / 6), torch.tensor([[0.0, 0.0, 1.0]]))
    assert instance.sum().item() == pytest.approx(1)
    assert classes.sum().item() == pytest.approx(1)


def test_the_order_of_the_labelled_images_does_not_matter(ready):
    method, order = ready.method, torch.tensor([3, 0, 5, 1, 4, 2])
    probs, query = torch.randn(4, 3).softmax(-1), F.normalize(torch.randn(4, 8), dim=-1)
    _, before = method.targets(method.similarity(query).softmax(-1), probs)
    method.embedding.copy_(method.embedding[order])
    method.label.copy_(method.label[order])
    _, after = method.targets(method.similarity(query).softmax(-1), probs)
    torch.testing.assert_close(before, after)


def test_a_repeated_image_is_averaged_before_it_is_mixed_in(ready):
    method = ready.method
    old, new = method.embedding.clone(), F.normalize(torch.randn(3, 8), dim=-1)
    method.update(torch.tensor([2, 2, 4]), new, torch.tensor([1, 1, 0]))
    expected = F.normalize(0.7 * old[2] + 0.3 * (new[0] + new[1]) / 2, dim=-1)
    torch.testing.assert_close(method.embedding[2], expected)
    torch.testing.assert_close(method.embedding[0], old[0])
    assert method.label[2] == 1
    torch.testing.assert_close(method.embedding.norm(dim=1), torch.ones(6))


def test_until_every_labelled_image_was_seen_the_instance_loss_is_zero(toy_state):
    state = toy_state("simmatch")
    result = step_result(state)
    assert result.parts["loss_instance"].item() == 0
    for _ in range(10):
        state.step()
    result = step_result(state)
    assert result.parts["loss_instance"].item() > 0


def test_memory_holds_the_given_labels(ready):
    assert torch.equal(ready.method.label, ready.labels)


def test_without_smoothing_and_instances_it_is_aligned_fixmatch(toy_state):
    off = {"own_share": 1.0, "instance_weight": 0.0, "threshold": 0.4}
    simmatch = toy_state("simmatch", **{f"method__{key}": value for key, value in off.items()})
    fixmatch = FixMatch(FixMatchConfig(threshold=0.4), simmatch.method.problem)
    for _ in range(4):  # every labelled image has been seen after the first
        batch = next_batch(simmatch)
        ours, theirs = (each.step(batch, simmatch.online, simmatch.average) for each in (simmatch.method, fixmatch))
        assert ours.pseudo is not None
        assert theirs.pseudo is not None
        assert torch.equal(ours.pseudo.target, theirs.pseudo.target)
        assert torch.equal(ours.pseudo.weight, theirs.pseudo.weight)
        assert ours.loss.item() == pytest.approx(theirs.loss.item(), rel=1e-5)
    assert (simmatch.method.label != UNSEEN).all()


def test_a_step_does_not_depend_on_the_order_of_the_slots(ready):
    other, order = copy.deepcopy(ready.method), torch.tensor([3, 0, 5, 1, 4, 2])
    other.embedding.copy_(other.embedding[order])
    other.label.copy_(other.label[order])
    batch = next_batch(ready)
    moved = replace(batch, labeled_position=order.argsort()[batch.labeled_position])
    before = ready.method.step(batch, ready.online, ready.average)
    after = other.step(moved, ready.online, ready.average)
    assert before.parts["loss_instance"] > 0
    for name, part in before.parts.items():
        assert after.parts[name].item() == pytest.approx(part.item(), rel=1e-5)
    assert torch.equal(before.pseudo.target, after.pseudo.target)
    torch.testing.assert_close(other.embedding, ready.method.embedding[order])
    assert torch.equal(other.label, ready.method.label[order])
