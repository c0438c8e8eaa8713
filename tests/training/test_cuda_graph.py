"""The captured step equals the ordinary one (on CUDA), and no garbage is collected during a capture."""

import gc
import weakref
from pathlib import Path

import pytest
import torch
from tests.conftest import toy_settings

from aggmatch.methods import METHODS
from aggmatch.models.wide_resnet import WideResNet
from aggmatch.training.cuda_graph import WARM_CALLS, Captured, no_collection
from aggmatch.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("exact_convolutions")
BACKBONE = {"model__name": f"{Path(__file__).with_name('frozen_backbone.py')}:Bands", "views__cached": 2}
SPECIAL: dict[str, dict[str, object]] = {
    "cold start": {
        "recipe": "cold-start",
        "method__slots": 16,
        "method__subsets": 4,
        "method__rotated": 16,
        "method__rotation_steps": WARM_CALLS + 2,
    },
    "neighbours": {
        "recipe": "neighbours",
        "method__contrast_steps": WARM_CALLS + 2,
        "method__propagation_steps": WARM_CALLS + 2,
        "method__propagations": 2,
        "method__neighbours": 5,
    },
    "exact gradient": {"train__exact_gradient": True},
    "frozen": {"train__backbone": "frozen", **BACKBONE},
    "finetune": {"train__backbone": "finetune", **BACKBONE},
}
"""Ways to train that a captured step must know."""


def on_gpu(test):
    """Mark a test that needs a CUDA device."""
    without = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    return pytest.mark.gpu(without(test))


class Cycle:
    """An object that only the garbage collector can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collector():
    """Restores the garbage collector after the test."""
    collecting = gc.isenabled()
    yield
    (gc.enable if collecting else gc.disable)()


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("before", [True, False])
def test_garbage_is_collected_before_and_not_within(before):
    (gc.enable if before else gc.disable)()
    left = weakref.ref(Cycle())
    with no_collection():
        assert left() is None
        assert not gc.isenabled()
    assert gc.isenabled() == before


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("before", [True, False])
def test_the_collector_is_restored_after_an_error(before):
    (gc.enable if before else gc.disable)()
    with pytest.raises(RuntimeError, match="spoiled"), no_collection():
        raise RuntimeError("spoiled")
    assert gc.isenabled() == before


def make(toy_data, toy_split, method, **changes):
    """A trainer whose weights hardly move, so that rounding errors cannot grow; its velocity shows the gradients."""
    changes = {"train__precision": "float32", "optim__lr": 1e-6} | changes
    return Trainer(toy_settings(method, **changes), toy_data, toy_split, torch.device("cuda"))


def assert_alike(left: Trainer, right: Trainer) -> None:
    """Assert the same sums of gradients, up to rounding."""
    for name, velocity in left.optimizer.velocity.items():
        scale = velocity.abs().max().item() + 1e-6
        torch.testing.assert_close(velocity, right.optimizer.velocity[name], atol=1e-2 * scale, rtol=1e-2, msg=name)


@on_gpu
@pytest.mark.parametrize("model", ["small-4", "wrn-10-2"])  # the wide one uses fused kernels
@pytest.mark.parametrize("method", METHODS.names())
def test_a_captured_step_equals_the_ordinary_one(toy_data, toy_split, method, model):
    ordinary = make(toy_data, toy_split, method, runtime__graph=False, model__name=model)
    captured = make(toy_data, toy_split, method, runtime__graph=True, model__name=model)
    for _ in range(WARM_CALLS + 5):
        ordinary.step()
        captured.step()
    assert isinstance(captured.run_step, Captured)
    assert captured.run_step.graph is not None
    assert_alike(ordinary, captured)
    assert ordinary.meters.read() == pytest.approx(captured.meters.read(), rel=1e-2, abs=1e-3)
    assert torch.equal(ordinary.generator.get_state(), captured.generator.get_state())


@on_gpu
@pytest.mark.parametrize("way", SPECIAL)
def test_a_captured_step_equals_the_ordinary_one_in_every_way_to_train(toy_data, toy_split, way, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    changes = {"model__name": "wrn-10-2"} | SPECIAL[way]
    ordinary, captured = (make(toy_data, toy_split, "aggmatch", runtime__graph=g, **changes) for g in (False, True))
    for _ in range(3 * WARM_CALLS + 7):
        ordinary.step()
        captured.step()
    assert captured.graph is not None
    assert_alike(ordinary, captured)
    assert ordinary.meters.read().keys() == captured.meters.read().keys()


@on_gpu
def test_learning_rate_and_average_advance_in_a_replay(toy_data, toy_split):
    moved = []
    for graph in (False, True):
        changes = {"runtime__graph": graph, "train__steps": 10, "optim__lr": 1e-4, "optim__average": 0.5}
        state = make(toy_data, toy_split, "fixmatch", **changes)
        first = torch.cat([weight.detach().flatten() for weight in state.online.parameters()])
        for _ in range(9):
            state.step()
        networks = (state.online, state.average)
        moved.append([torch.cat([w.detach().flatten() for w in net.parameters()]) - first for net in networks])
        assert state.step_counter.item() == 9
    for ordinary, captured in zip(*moved, strict=True):
        assert ordinary.norm() > 0
        assert (ordinary - captured).norm() < 0.02 * ordinary.norm()


@on_gpu
@pytest.mark.parametrize("method", METHODS.names())
def test_the_fused_network_trains_like_the_plain_one(toy_data, toy_split, method):
    fused, plain = (make(toy_data, toy_split, method, runtime__graph=False, model__name="wrn-10-2") for _ in range(2))
    for network in (plain.online, plain.average):
        assert isinstance(network.backbone, WideResNet)
        network.backbone.fusible = False
    for _ in range(3):
        fused.step()
        plain.step()
    assert_alike(plain, fused)
    assert plain.meters.read() == pytest.approx(fused.meters.read(), rel=1e-2, abs=1e-3)


@on_gpu
@pytest.mark.parametrize("method", METHODS.names())
def test_a_captured_run_continues_from_a_checkpoint(toy_data, toy_split, method):
    whole = make(toy_data, toy_split, method)
    resumed = make(toy_data, toy_split, method)
    for step in range(12):
        whole.step()
        if step == 7:
            resumed.restore(whole.checkpoint())
        if step > 7:
            resumed.step()
    assert_alike(whole, resumed)
    assert torch.equal(whole.generator.get_state(), resumed.generator.get_state())


@on_gpu
def test_no_garbage_is_collected_during_the_capture():
    collecting = []

    def watches(value):
        collecting.append(gc.isenabled())
        value.add_(1)

    captured = Captured(watches, torch.Generator("cuda").manual_seed(0))
    for _ in range(WARM_CALLS + 2):
        captured(torch.ones(2, device="cuda"))
    assert captured.graph is not None
    assert collecting == [True] * WARM_CALLS + [False]


@on_gpu
def test_a_function_that_cannot_be_captured_runs_without_a_graph():
    generator, expected = (torch.Generator("cuda").manual_seed(3) for _ in range(2))
    torch.manual_seed(4)
    total = torch.zeros((), device="cuda")
    drawn = []

    def reads_from_the_device(value):
        drawn.append(torch.rand((), device="cuda", generator=generator))
        total.add_(value.sum())
        if total.item() < 0:
            total.zero_()

    captured = Captured(reads_from_the_device, generator)
    for _ in range(WARM_CALLS):
        captured(torch.ones(2, device="cuda"))
    stream = torch.cuda.current_stream()
    with pytest.warns(UserWarning, match="without a CUDA graph"):
        captured(torch.ones(2, device="cuda"))
    captured(torch.ones(2, device="cuda"))
    assert total.item() == 2 * (WARM_CALLS + 2)
    assert torch.cuda.current_stream() == stream
    del drawn[WARM_CALLS]  # recorded by the capture, but not run
    assert [value.item() for value in drawn] == [
        torch.rand((), device="cuda", generator=expected).item() for _ in drawn
    ]
    assert (
        torch.rand((), device="cuda").item() == torch.rand((), device="cuda", generator=expected.manual_seed(4)).item()
    )
