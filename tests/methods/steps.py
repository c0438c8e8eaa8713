"""What tests of a single step share."""

import copy
from dataclasses import replace

import torch


def next_batch(state):
    """The next batch of a trainer."""
    return state.make_batch(*state.draw_indices())


def step_result(state):
    """What the method computes of the next batch; the weights stay."""
    return state.method.step(next_batch(state), state.online, state.average)


def after_steps(state, steps, progress=0.1):
    """A trainer after some steps, and its next batch as if that share of the training were done."""
    for _ in range(steps):
        state.step()
    return state, replace(next_batch(state), progress=torch.tensor(progress))


def check_same_training(first, second):
    """Two trainers with the same start learn the same in a few steps, to the bit."""
    for _ in range(4):
        first.step()
        second.step()
    assert first.meters.read() == second.meters.read()
    for name, weight in first.online.state_dict().items():
        assert torch.equal(weight, second.online.state_dict()[name])


def probabilities(network, images):
    """Class probabilities of one batch, normalised by its own statistics."""
    return copy.deepcopy(network).train()(images).logits.detach().double().softmax(-1)


def record_outputs(network):
    """A list that gets all outputs which the network returns from now on, with the gradients of logits and features."""
    outputs = []
    forward = network.forward

    def spy(images, **options):
        output = forward(images, **options)
        for values in (output.logits, output.feature):
            if values.requires_grad:
                values.retain_grad()
        outputs.append(output)
        return output

    network.forward = spy
    return outputs
