import math

import pytest
import torch
from tests.methods.steps import next_batch, step_result

from aggmatch.methods.fixmatch import Config as FixMatchConfig
from aggmatch.methods.fixmatch import FixMatch
from aggmatch.methods.freematch import Config, FreeMatch


def method(state, **settings) -> FreeMatch:
    return FreeMatch(Config(**settings), state.method.problem)


def test_thresholds_by_hand(toy_state):
    freematch = method(toy_state("freematch"))
    freematch.confidence.fill_(0.8)
    freematch.probs.copy_(torch.tensor([0.5, 0.25, 0.25]))
    assert freematch.thresholds().tolist() == pytest.approx([0.8, 0.4, 0.4])
    clamped = method(toy_state("freematch"), lowest_threshold=0.9, highest_threshold=0.95)
    assert clamped.thresholds().tolist() == pytest.approx([0.9] * 3)


def test_state_at_the_start_lets_everything_pass(toy_state):
    state = toy_state("freematch")
    result = step_result(state)
    assert result.pseudo.weight.mean() > 0.9, "all thresholds are close to 1/Y"


def test_with_even_shares_and_no_fairness_the_loss_is_that_of_fixmatch(toy_state):
    state = toy_state("freematch")
    batch = next_batch(state)
    freematch = method(state, momentum=1.0, fairness_weight=0.0)
    freematch.confidence.fill_(0.4)
    fixmatch = FixMatch(FixMatchConfig(threshold=0.4), state.method.problem)
    ours, theirs = (each.step(batch, state.online, state.average) for each in (freematch, fixmatch))
    assert ours.loss.item() == pytest.approx(theirs.loss.item())


def test_running_statistics_include_this_batch(toy_state):
    freematch = method(toy_state("freematch"), momentum=0.5)
    probs = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1]])
    freematch.update(probs, *probs.max(-1))
    assert freematch.confidence.item() == pytest.approx((1 / 3 + 0.8) / 2)
    assert freematch.probs.tolist() == pytest.approx([(1 / 3 + 0.55) / 2, (1 / 3 + 0.4) / 2, (1 / 3 + 0.05) / 2])
    assert freematch.histogram.tolist() == pytest.approx([(1 / 3 + 0.5) / 2, (1 / 3 + 0.5) / 2, 1 / 6])


@pytest.mark.parametrize(("sign", "factor"), [("printed", 1), ("opposite", -1)])
def test_the_fairness_term_by_hand(toy_state, sign, factor):
    freematch = method(toy_state("freematch"), fairness_sign=sign)
    freematch.probs.copy_(torch.tensor([0.6, 0.2, 0.2]))
    freematch.histogram.copy_(torch.tensor([0.5, 0.25, 0.25]))
    strong = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.0, 0.0, 1.0]])
    kept = torch.tensor([1.0, 1.0, 0.0])
    running = torch.tensor([1.2, 0.8, 0.8]) / 2.8
    current = torch.tensor([0.4 / 0.5, 0.5 / 0.5, 0.0]) / 1.8  # class 2 has no kept image
    expected = sum(a * math.log(r + 1e-12) for a, r in zip(running.tolist(), current.tolist(), strict=True))
    assert freematch.fairness(strong, kept).item() == pytest.approx(factor * expected, rel=1e-5)


def test_without_a_kept_image_fairness_is_zero_and_gradients_are_finite(toy_state):
    freematch = method(toy_state("freematch"))
    logits = torch.randn(4, 3, requires_grad=True)
    term = freematch.fairness(logits.softmax(-1), torch.zeros(4))
    (term + logits.sum() * 0).backward()
    assert term.item() == 0
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_with_one_class_kept_fairness_is_finite(toy_state):
    freematch = method(toy_state("freematch"))
    logits = torch.tensor([[9.0, 0.0, 0.0]] * 4, requires_grad=True)
    freematch.fairness(logits.softmax(-1), torch.ones(4)).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_the_warmup_learns_from_labels_alone_and_leaves_the_running_values(toy_state):
    state = toy_state("freematch", method__warmup=2)
    start = {name: value.clone() for name, value in state.method.state_dict().items()}
    for step in range(3):  # without `refresh`: a captured step ends the warm-up by itself
        result = step_result(state)
        running = {name: value for name, value in state.method.state_dict().items() if not name.startswith("start.")}
        learned = [name for name, value in running.items() if not torch.equal(value, start[name])]
        if step < 2:
            assert result.loss.item() == result.parts["loss_labeled"].item()
            assert learned == []
        else:
            assert result.loss.item() != result.parts["loss_labeled"].item()
            assert learned == ["confidence", "probs", "histogram"]


def test_a_restored_state_continues_the_warmup(toy_resume):
    expected, got = toy_resume("freematch", method__warmup=4)
    assert all(torch.equal(tensor, got.tensors[key]) for key, tensor in expected.tensors.items())


def test_the_running_confidence_and_the_thresholds_are_logged(toy_state):
    state = toy_state("freematch", method__momentum=0.0)
    parts = step_result(state).parts
    assert parts["running_confidence"] == parts["threshold_highest"] == state.method.confidence
    assert parts["threshold_lowest"] < parts["threshold"] < parts["threshold_highest"]
