import math
from dataclasses import replace

import pytest
import torch
from tests.methods.steps import next_batch

from aggmatch.methods.uda import UDA, Config

# Progress at which η has grown by a share g.
PROGRESS = {"linear": lambda g: g, "log": lambda g: -math.log(1 - g) / 5, "exp": lambda g: 1 + math.log(g) / 5}


def train(state, steps):
    for _ in range(steps):
        state.step()
    return state


def predict(state, batch):
    probs = state.online(torch.cat([*batch.labeled, *batch.unlabeled])).logits.detach().double().softmax(-1)
    m = len(batch.unlabeled_index)
    return probs.split([len(batch.labels), m, m])


def middle(values):
    """A number between the two halves of values."""
    half = len(values) // 2
    return values.sort().values[half - 1 : half + 1].mean().item()


def test_the_loss_equals_the_definition(toy_state):
    state = train(toy_state("uda"), 3)
    batch = next_batch(state)
    labeled, weak, strong = predict(state, batch)
    n, m, classes = len(labeled), len(weak), weak.shape[1]
    threshold = middle(weak.max(-1).values)
    method = UDA(Config(threshold=threshold, temperature=0.5, unlabeled_weight=2.0), state.method.problem)
    loss = -sum(labeled[i, y].log() for i, y in enumerate(batch.labels.tolist())) / n
    for i in range(m):
        if weak[i].max() >= threshold:
            target = [weak[i, y] ** 2 / (weak[i] ** 2).sum() for y in range(classes)]
            loss += 2 * sum(q * (q.log() - strong[i, y].log()) for y, q in enumerate(target)) / m
    result = method.step(batch, state.online, state.average)
    assert result.loss.item() == pytest.approx(loss.item(), rel=1e-4)
    assert result.pseudo is not None
    assert result.pseudo.weight.sum().item() == m / 2  # by the prediction itself; after sharpening, more would pass
    assert torch.equal(result.pseudo.target, weak.argmax(-1))


@pytest.mark.parametrize("schedule", ["linear", "log", "exp"])
def test_annealing_leaves_out_labelled_images_that_are_already_learned(toy_state, schedule):
    state = train(toy_state("uda", method__annealing=schedule, method__unlabeled_weight=0.0), 8)
    batch = next_batch(state)
    labeled, _, _ = predict(state, batch)
    probs = labeled[range(len(labeled)), batch.labels]
    bound = middle(probs)
    growth = (bound - 1 / 3) / (1 - 1 / 3)
    assert math.exp(-5) < growth < 1 - math.exp(-5)  # which every schedule reaches
    batch = replace(batch, progress=torch.tensor(PROGRESS[schedule](growth)))
    loss = -sum(p.log() for p in probs if p <= bound) / (len(probs) / 2)
    result = state.method.step(batch, state.online, state.average)
    assert result.loss.item() == pytest.approx(loss.item(), rel=1e-4)


@pytest.mark.parametrize(
    ("schedule", "start", "end"),
    [
        ("none", 1, 1),
        ("linear", 1 / 3, 1),
        ("log", 1 / 3, 1 / 3 + 2 / 3 * (1 - math.exp(-5))),
        ("exp", 1 / 3 + 2 / 3 * math.exp(-5), 1),
    ],
)
def test_the_annealing_threshold_grows_from_chance_to_one(toy_state, schedule, start, end):
    method = toy_state("uda", method__annealing=schedule).method
    values = [method.signal_threshold(torch.tensor(k / 10)).item() for k in range(11)]
    assert values == sorted(values)
    assert values[0] == pytest.approx(start)
    assert values[-1] == pytest.approx(end)


def test_without_annealing_even_a_certain_image_counts(toy_state):
    state = toy_state("uda", method__unlabeled_weight=0.0)
    batch = next_batch(state)
    forward = state.online.forward

    def certain(images, **options):
        output = forward(images, **options)
        scale = torch.ones(len(images), 1)
        scale[0] = 1e4
        return output._replace(logits=output.logits * scale)

    state.online.forward = certain
    logits = state.online(torch.cat([*batch.labeled, *batch.unlabeled])).logits[: len(batch.labels)]
    batch = replace(batch, labels=batch.labels.clone().index_fill(0, torch.tensor([0]), int(logits[0].argmax())))
    assert logits[0].softmax(-1).max() == 1
    expected = torch.nn.functional.cross_entropy(logits, batch.labels)
    result = state.method.step(batch, state.online, state.average)
    assert result.loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_with_every_label_learned_the_unlabelled_loss_alone_reaches_the_whole_network(toy_state):
    state = train(toy_state("uda"), 25)
    method = UDA(Config(annealing="linear", threshold=0.0), state.method.problem)
    batch = replace(next_batch(state), progress=torch.zeros(()))
    labeled, _, _ = predict(state, batch)
    assert labeled[range(len(labeled)), batch.labels].min() > 1 / 3
    result = method.step(batch, state.online, state.average)
    assert result.parts["loss_labeled"].item() == 0
    assert result.loss.item() == pytest.approx(result.parts["loss_unlabeled"].item())
    result.loss.backward()
    assert all(parameter.grad.abs().max() > 1e-6 for parameter in state.online.parameters())


def test_equal_views_have_no_loss_unless_the_target_is_sharpened(toy_state):
    for temperature, costs in ((1.0, False), (0.4, True)):
        state = toy_state("uda", method__threshold=0.0, method__temperature=temperature)
        batch = next_batch(state)
        batch = replace(batch, unlabeled=(batch.unlabeled[0], batch.unlabeled[0]))
        result = state.method.step(batch, state.online, state.average)
        assert (abs(result.parts["loss_unlabeled"].item()) > 1e-5) == costs
