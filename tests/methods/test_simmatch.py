import pytest
import torch
import torch.nn.functional as F

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
    result = state.method.step(state.make_batch(*state.draw_indices()), state.online, state.average)
    assert result.parts["loss_instance"].item() == 0
    for _ in range(10):
        state.step()
    result = state.method.step(state.make_batch(*state.draw_indices()), state.online, state.average)
    assert result.parts["loss_instance"].item() > 0


def test_memory_holds_the_given_labels(ready):
    assert torch.equal(ready.method.label, ready.labels)
