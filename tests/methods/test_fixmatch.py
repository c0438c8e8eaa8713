import pytest
import torch
from tests.methods.steps import next_batch, record_outputs, step_result

from aggmatch.methods.fixmatch import Config, FixMatch


def test_the_loss_equals_the_definition(toy_state):
    state = toy_state("fixmatch")
    for _ in range(3):
        state.step()
    batch = next_batch(state)
    probs = state.online(torch.cat([*batch.labeled, *batch.unlabeled])).logits.detach().double().softmax(-1)
    n, m = len(batch.labels), len(batch.unlabeled[0])
    labeled, weak, strong = probs.split([n, m, m])
    threshold = weak.max(-1).values.sort().values[m // 2 - 1 : m // 2 + 1].mean().item()  # half of them pass
    method = FixMatch(Config(threshold=threshold, unlabeled_weight=2.0), state.method.problem)
    loss = -sum(labeled[i, y].log() for i, y in enumerate(batch.labels.tolist())) / n
    for i in range(m):
        if weak[i].max() >= threshold:
            loss -= 2 * strong[i, weak[i].argmax()].log() / m
    result = method.step(batch, state.online, state.average)
    assert result.loss.item() == pytest.approx(loss.item(), rel=1e-4)
    assert result.pseudo is not None
    assert result.pseudo.weight.sum().item() == m / 2


@pytest.mark.parametrize("name", ["fixmatch", "uda"])
def test_without_confident_images_only_labels_count(name, toy_state):
    state = toy_state(name, method__threshold=1.0)
    result = step_result(state)
    assert result.parts["loss_unlabeled"].item() == 0
    assert result.loss.item() == pytest.approx(result.parts["loss_labeled"].item())


@pytest.mark.parametrize("name", ["fixmatch", "uda"])
def test_gradients_go_through_the_strong_view_only(name, toy_state):
    state = toy_state(name, method__threshold=0.0)
    batch = next_batch(state)
    outputs = record_outputs(state.online)
    state.method.step(batch, state.online, state.average).loss.backward()
    n, m = len(batch.labels), len(batch.unlabeled[0])
    labeled, strong, weak = outputs[0].logits.grad.split([n, m, m])
    assert labeled.abs().sum() > 0
    assert strong.abs().sum(1).min() > 0
    assert weak.abs().sum() == 0
