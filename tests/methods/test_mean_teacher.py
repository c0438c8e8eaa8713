"""The teacher of Mean Teacher. Its loss is tested together with that of the Π-Model."""

import copy

import pytest
import torch
from tests.methods.steps import after_steps


@pytest.fixture
def trained(toy_state):
    """A trainer after a few steps, when the average differs from the network, and its next batch."""
    return after_steps(toy_state("mean_teacher"), 6)


def test_the_teacher_gets_no_gradient_even_if_it_could(trained):
    state, batch = trained
    state.average.requires_grad_(True)
    state.method.step(batch, state.online, state.average).loss.backward()
    assert all(parameter.grad is None for parameter in state.average.parameters())


def test_a_step_does_not_change_the_statistics_of_the_teacher(trained):
    state, batch = trained
    teacher = copy.deepcopy(state.average)
    state.method.step(batch, state.online, state.average)
    for name, buffer in state.average.named_buffers():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(buffer, teacher.get_buffer(name)), name


def test_the_average_is_evaluated_with_the_statistics_of_the_online_network(trained):
    state, _ = trained
    state.step()
    online, average = dict(state.online.named_buffers()), dict(state.average.named_buffers())
    assert all(torch.equal(buffer, average[name]) for name, buffer in online.items())
    weights = zip(state.online.parameters(), state.average.parameters(), strict=True)
    assert not any(torch.equal(current, averaged) for current, averaged in weights)
