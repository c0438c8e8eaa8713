"""The stages of a step: their names, the calls they repeat, and that they do not change the training."""

import pytest
import torch

from aggmatch.bench import stages
from aggmatch.bench.stages import MOMENTUM, ONLINE, Pieces, measure_stages, watched
from aggmatch.bench.timing import Effort, Timing

EFFORT = Effort(torch.device("cpu"), wanted=2)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("aggmatch", [ONLINE, MOMENTUM, "enqueue", "split", "aggregation"]),
        ("fixmatch", [ONLINE]),
        ("mean_teacher", [ONLINE, MOMENTUM]),
    ],
)
def test_every_method_has_its_own_stages(toy_state, method, expected):
    state = toy_state(method)
    state.step()
    found = measure_stages(Pieces(state), EFFORT, step=10.0)
    names = [stage.name for stage in found]
    assert names == ["views", *expected, "backward", "optimizer", "average", "other"]
    assert all(stage.seconds >= 0 for stage in found)
    assert sum(stage.seconds for stage in found) == pytest.approx(10.0), "the rest is `other`"
    differences = [stage.name for stage in found if stage.timing is None]
    assert differences == ["backward", "other"]


def test_a_timed_stage_has_percentiles_in_json():
    timed = stages.Stage("views", 0.002, Timing(0.002, 0.001, 0.003, 9)).to_dict()
    assert timed == {"stage": "views", "median_ms": 2.0, "p5_ms": 1.0, "p95_ms": 3.0, "calls": 9}
    difference = stages.Stage("backward", 0.002).to_dict()
    assert difference == {"stage": "backward", "median_ms": 2.0, "p5_ms": None, "p95_ms": None, "calls": None}


def test_watching_a_method_records_its_calls_and_restores_it(toy_state):
    state = toy_state("aggmatch")
    before = state.online.forward
    images = state.inputs.plain[:3]
    with watched(state.online, "forward") as calls, torch.no_grad():
        expected = state.online(images, targets=1)
    assert state.online.forward == before
    assert "forward" not in vars(state.online)
    (call,) = calls
    assert call.arguments[0] is not images
    assert torch.equal(call.arguments[0], images)
    assert call.keywords == {"targets": 1}
    assert not call.gradient
    assert torch.isfinite(expected.logits).all()


def test_a_call_is_repeated_with_gradients_only_if_it_had_them(toy_state):
    seen = []

    class Owner:
        def work(self, value):
            seen.append((torch.is_grad_enabled(), value.requires_grad, value.tolist()))

    owner, value = Owner(), torch.tensor(2.0, requires_grad=True)
    with watched(owner, "work") as calls:
        owner.work(value)
        with torch.no_grad():
            owner.work(value)
    seen.clear()
    stages.repeat(calls)
    assert seen == [(True, False, 2.0), (False, False, 2.0)], "arguments are constants"
    assert torch.is_grad_enabled()


def test_watching_ends_after_an_error_too(toy_state):
    state = toy_state("supervised")
    with pytest.raises(RuntimeError), watched(state.method, "step"):
        raise RuntimeError
    assert "step" not in vars(state.method)


def test_stages_change_neither_weights_nor_gradients(toy_state):
    state = toy_state("aggmatch")
    state.step()
    pieces = Pieces(state)
    weights = {name: value.clone() for name, value in state.online.named_parameters()}
    velocity = {name: value.clone() for name, value in state.optimizer.velocity.items()}
    for stage in pieces.stages().values():
        stage()
    pieces.learn()
    for name, value in state.online.named_parameters():
        assert torch.equal(value, weights[name])
        assert value.grad is None
    assert not torch.equal(state.optimizer.velocity["classifier.weight"], velocity["classifier.weight"])


def test_the_optimizer_gets_gradients_of_all_trained_parameters(toy_state):
    paws = Pieces(toy_state("paws"))
    untrained = set(paws.trainer.online.classifier.parameters())
    assert set(paws.gradients) == set(paws.trainer.online.parameters()) - untrained


def test_a_repeated_call_fills_the_queue(toy_state):
    state = toy_state("aggmatch")
    pieces = Pieces(state)
    state.method.queue.fill.zero_()
    pieces.stages()["enqueue"]()
    assert state.method.queue.fill.sum() >= len(pieces.batch.labels)
