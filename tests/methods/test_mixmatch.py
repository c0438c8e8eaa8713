import copy
import math
from dataclasses import replace

import pytest
import torch
from tests.methods.steps import next_batch, step_result

from aggmatch.config import Layer
from aggmatch.functional import interleave
from aggmatch.settings import resolve


def train(state, steps):
    for _ in range(steps):
        state.step()
    return state


def watch(network):
    """Inputs and outputs of every forward pass from now on."""
    passes = []
    forward = network.forward

    def spy(images):
        output = forward(images)
        if output.logits.requires_grad:
            output.logits.retain_grad()
        passes.append((images, output.logits))
        return output

    network.forward = spy
    return passes


def statistics(network):
    return [buffer.clone() for name, buffer in network.named_buffers() if "running" in name]


def slow_loss(network, batch, partner, share, *, power, weight):
    """The definition, image by image, with the network's batches formed by hand. Returns both parts and the loss."""

    def predict(images):
        return network(images).logits.double().softmax(-1)

    views = [predict(view) for view in batch.unlabeled]
    n, m, classes = len(batch.labels), len(batch.unlabeled_index), views[0].shape[1]
    images = [image.double() for view in (*batch.labeled, *batch.unlabeled) for image in view]
    targets = [[float(y == label) for y in range(classes)] for label in batch.labels.tolist()]
    guesses = []
    for i in range(m):
        raised = [((views[0][i, y] + views[1][i, y]).item() / 2) ** power for y in range(classes)]
        guesses.append([value / sum(raised) for value in raised])
    targets += guesses + guesses

    mixed_images, mixed_targets = [], []
    for i in range(n + 2 * m):
        j, own = int(partner[i]), float(share[i])
        mixed_images.append(own * images[i] + (1 - own) * images[j])
        mixed_targets.append([own * targets[i][y] + (1 - own) * targets[j][y] for y in range(classes)])

    count = (n + 2 * m) // n
    probs: dict[int, torch.Tensor] = {}
    for number in range(count):
        members = [(place - number) % count * n + place for place in range(n)]
        output = predict(torch.stack([mixed_images[i] for i in members]))
        probs |= dict(zip(members, output, strict=True))

    labeled = unlabeled = 0.0
    for i in range(n + 2 * m):
        for y in range(classes):
            target, prob = mixed_targets[i][y], probs[i][y].item()
            if i < n:
                labeled -= target * math.log(prob) / n
            else:
                unlabeled += (target - prob) ** 2 / (2 * m * classes)
    return labeled, unlabeled, labeled + weight * unlabeled


@pytest.mark.parametrize("ratio", [1, 3])
def test_the_loss_equals_the_definition(toy_state, ratio):
    settings = {"method__sharpening": 0.25, "method__alpha": 0.75, "method__ramp": 0.5}
    state = train(toy_state("mixmatch", train__unlabeled_ratio=ratio, **settings), 4)
    batch = next_batch(state)
    network = copy.deepcopy(state.online).double()
    drawn: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    draw = state.method.draw
    state.method.draw = lambda *args: drawn.setdefault("mix", draw(*args))
    result = state.method.step(batch, state.online, state.average)
    labeled, unlabeled, loss = slow_loss(network, batch, *drawn["mix"], power=4, weight=10 * 4 / 40 / 0.5)
    assert result.parts["loss_labeled"].item() == pytest.approx(labeled, rel=1e-5)
    assert result.parts["loss_unlabeled"].item() == pytest.approx(unlabeled, rel=1e-4)
    assert result.loss.item() == pytest.approx(loss, rel=1e-5)
    assert unlabeled > 1e-4


def test_a_mix_is_a_permutation_with_the_larger_share_for_the_image_itself(toy_state):
    state = toy_state("mixmatch", method__alpha=0.75)
    (partner, share), (other, _) = (state.method.draw(200, state.generator) for _ in range(2))
    assert sorted(partner.tolist()) == list(range(200))
    assert not torch.equal(partner, other)
    assert share.min() >= 0.5
    assert len(share.unique()) > 190  # each its own


def test_guessed_labels_are_the_mean_prediction_of_both_views_and_all_count(toy_state):
    state = train(toy_state("mixmatch"), 5)
    batch = next_batch(state)
    first, second = (state.online(view).logits.detach().softmax(-1) for view in batch.unlabeled)
    result = state.method.step(batch, state.online, state.average)
    mean = (first + second) / 2
    assert not torch.equal(first, second)
    assert result.pseudo is not None
    assert torch.equal(result.pseudo.target, mean.argmax(-1))
    assert result.pseudo.weight.tolist() == [1.0] * len(batch.unlabeled_index)
    assert result.parts["confidence"].item() == pytest.approx(mean.max(-1).values.mean().item(), rel=1e-5)


def test_only_the_first_mixed_batch_updates_the_running_statistics(toy_state):
    state = train(toy_state("mixmatch", train__unlabeled_ratio=1), 3)
    batch = next_batch(state)
    expected = copy.deepcopy(state.online)
    passes = watch(state.online)
    state.method.step(batch, state.online, state.average)
    assert [len(images) for images, _ in passes] == [6] * 5  # two views, then three equal mixed batches
    before = statistics(expected)
    expected(passes[2][0])
    for old, new, moved in zip(before, statistics(expected), statistics(state.online), strict=True):
        assert not torch.equal(old, new)
        assert torch.equal(new, moved)


def test_the_batches_of_the_network_hold_labelled_and_unlabelled_images_in_equal_parts(toy_state):
    state = toy_state("mixmatch", train__unlabeled_ratio=1)
    originals = torch.randint(0, 256, (18, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labeled, first, second = originals.split(6)
    batch = replace(next_batch(state), labeled=(labeled,), unlabeled=(first, second))
    state.method.draw = lambda count, generator: (torch.arange(count), torch.ones(count))  # mix nothing
    passes = watch(state.online)
    state.method.step(batch, state.online, state.average)
    for images, _ in passes[2:]:
        origin = (images[:, None] == originals).flatten(2).all(-1).float().argmax(1) // 6
        assert torch.bincount(origin).tolist() == [2, 2, 2]


def test_guesses_carry_no_gradient_and_every_mixed_image_has_one(toy_state):
    state = train(toy_state("mixmatch", train__unlabeled_ratio=1), 3)
    passes = watch(state.online)
    step_result(state).loss.backward()
    assert [logits.requires_grad for _, logits in passes] == [False, False, True, True, True]
    gradients = interleave([logits.grad for _, logits in passes[2:]])
    assert all(gradient.abs().sum(1).min() > 0 for gradient in gradients)


def test_the_unlabelled_loss_alone_reaches_every_parameter(toy_state):
    gradients = []
    for weight in (0.0, 10.0):
        state = toy_state("mixmatch", method__unlabeled_weight=weight, method__ramp=0.0)
        result = step_result(state)
        result.loss.backward()
        gradients.append([parameter.grad for parameter in state.online.parameters()])
    for without, both in zip(*gradients, strict=True):
        assert (both - without).abs().max() > 1e-4


@pytest.mark.parametrize(("progress", "weight"), [(0, 0), (1 / 128, 37.5), (1 / 64, 75), (0.99, 75)])
def test_the_weight_grows_linearly_over_the_first_64th_of_the_steps(toy_state, progress, weight):
    state = toy_state("mixmatch", method__unlabeled_weight=75.0)
    batch = replace(next_batch(state), progress=torch.tensor(float(progress)))
    result = state.method.step(batch, state.online, state.average)
    expected = result.parts["loss_labeled"] + weight * result.parts["loss_unlabeled"]
    assert result.loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_without_a_ramp_the_whole_weight_counts_from_the_first_step(toy_state):
    state = toy_state("mixmatch", method__ramp=0.0)
    result = step_result(state)
    expected = result.parts["loss_labeled"] + 10 * result.parts["loss_unlabeled"]
    assert result.loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_default_batch_has_as_many_unlabelled_as_labelled_images():
    settings = [resolve([Layer("the test", {"method.name": name})]) for name in ("mixmatch", "fixmatch")]
    assert [s.train.unlabeled_ratio for s in settings] == [1, 7]
