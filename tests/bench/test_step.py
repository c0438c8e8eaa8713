"""All measurements of a method's step: complete, positive and consistent with each other."""

import os
import signal
from dataclasses import replace
from functools import partial

import pytest
import torch
from tests.conftest import dotted

import aggmatch
from aggmatch.bench import cost
from aggmatch.bench.step import Bench, bare_step, describe_data, endless, stand_in, warm
from aggmatch.bench.timing import Effort
from aggmatch.config import Layer
from aggmatch.models.wide_resnet import WideResNet
from aggmatch.runs.log import Log
from aggmatch.settings import RunSettings, resolve
from aggmatch.training.trainer import Trainer

CPU = torch.device("cpu")
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def tiny(method: str = "aggmatch", **changes: object) -> RunSettings:
    values = {
        "data.name": "digits",
        "method.name": method,
        "model.name": "small-4",
        "train.batch": 10,
        "train.unlabeled_ratio": 2,
        "train.steps": 5,
        "recipe": "paper",
    }
    values |= {"method.slots": 8, "method.subsets": 2} if method == "aggmatch" else {}
    return resolve([Layer("the test", values | dotted(changes))])


@pytest.fixture(autouse=True)
def quick_rates(monkeypatch):
    monkeypatch.setitem(cost.SIDES, "cpu", 256)
    monkeypatch.setitem(cost.COPIED, "cpu", 2**24)


@pytest.mark.parametrize("method", ["aggmatch", "supervised"])
def test_measurements_are_positive_and_consistent(method):
    found = Bench(tiny(method), Effort(CPU, wanted=8)).everything(stages=True).to_dict()
    for timing in (found["step"], found["bare"]):
        assert 0 < timing["p5_ms"] <= timing["median_ms"] <= timing["p95_ms"]
        assert timing["calls"] == 8
    median = found["step"]["median_ms"] / 1e3
    assert found["images_per_step"] == {"aggmatch": 50, "supervised": 10}[method]
    assert found["images_per_second"] == pytest.approx(found["images_per_step"] / median)
    assert found["steps_per_second"] == pytest.approx(1 / median)
    assert found["first_step_seconds"] > 0
    assert found["peak_memory_bytes"] is None or found["peak_memory_bytes"] > 1e6
    assert found["loop_share_of_bare"] == pytest.approx(
        found["loop_steps_per_second"] * found["bare"]["median_ms"] / 1e3
    )
    floor = found["floor"]
    assert 0 < floor["floor_ms"] <= found["step"]["median_ms"]
    assert floor["share"] == pytest.approx(floor["floor_ms"] / found["step"]["median_ms"])
    assert {stage["stage"] for stage in found["stages"]} >= {"views", "online forward", "backward", "other"}
    assert not found["captured"]
    assert found["eager"] is None, "a CPU has no graph"
    assert found["eager_over_captured"] is None


def test_stages_can_be_left_out():
    assert Bench(tiny("supervised"), Effort(CPU, wanted=1)).everything(stages=False).to_dict()["stages"] is None


def test_the_measured_loop_does_not_end_evaluate_or_save(monkeypatch):
    for name in ("evaluate", "summarize"):
        monkeypatch.setattr(f"aggmatch.training.run.{name}", pytest.fail)
    for name in ("save", "finish", "keep_snapshot"):
        monkeypatch.setattr(aggmatch.Run, name, pytest.fail)
    bench = Bench(tiny("supervised", runtime__checkpoint_every=1, train__evaluate_every=1), Effort(CPU, wanted=12))
    step, state = bench.step()
    assert bench.loop(state, step.timing) > 0
    assert state.steps_done > 20


def test_the_measured_loop_writes_its_log_as_often_as_the_settings_say(monkeypatch):
    written = []
    monkeypatch.setattr("aggmatch.bench.timing.PATIENCE", 1e9)  # 12 steps may take long on a busy machine
    monkeypatch.setattr(Log, "write", lambda _log, record: written.append(record["step"]))
    bench = Bench(tiny("supervised", train__log_every=5), Effort(CPU, wanted=12))
    step, state = bench.step()
    bench.loop(state, step.timing)
    assert written == [15, 20, 25, 30], (
        "from the first line after 13 earlier steps to the first line at least 12 steps later"
    )


def test_a_tiny_learning_rate_keeps_training_on_random_images_from_diverging():
    found = endless(tiny(optim__lr=1e6))
    assert found.optim.lr < 1e-6
    assert replace(found.optim, lr=1.0) == tiny(optim__lr=1.0).optim


def test_ctrl_c_in_the_loop_ends_the_command(monkeypatch):
    bench = Bench(tiny("supervised"), Effort(CPU, wanted=4))
    step, state = bench.step()
    advance = Trainer.step

    def interrupted(state):
        advance(state)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Trainer, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.loop(state, step.timing)


def test_the_queue_is_full_and_holds_distributions(toy_state):
    state = toy_state("aggmatch")
    warm(state)
    queue = state.method.queue
    assert (queue.fill == queue.slots).all()
    torch.testing.assert_close(queue.probs.sum(-1), torch.ones(len(queue.probs)))
    torch.testing.assert_close(queue.feature.norm(dim=-1), torch.ones(len(queue.feature)))


def test_the_bare_step_draws_no_images(toy_state, monkeypatch):
    state = toy_state("supervised")
    call = bare_step(state)
    monkeypatch.setattr(state, "draw_indices", pytest.fail)
    before = float(state.step_counter)
    call()
    assert float(state.step_counter) == before + 1


def test_random_images_replace_a_data_set_with_files(tmp_path):
    settings = resolve([Layer("the test", {"data.name": "cifar10", "runtime.data_dir": str(tmp_path / "nothing")})])
    data, split = stand_in(settings)
    assert data.train.pixels.shape == (50_000, 3, 32, 32)
    assert data.train.pixels.float().mean() == pytest.approx(127.5, abs=1)
    assert data.train.labels.bincount().tolist() == [5000] * 10
    assert split.labels.bincount().tolist() == [4] * 10
    assert "random ones in the shape and number of cifar10" in describe_data("cifar10")


def test_digits_are_used_unchanged():
    data, _ = stand_in(tiny())
    assert data.train.pixels.shape == (1437, 1, 8, 8)
    assert "comes with the package" in describe_data("digits")


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("model", ["small-4", "wrn-10-2"])
@pytest.mark.parametrize("method", ["aggmatch", "fixmatch", "paws", "featmatch"])
def test_a_captured_step_and_the_eager_step_are_measured(method, model):
    effort = Effort(torch.device("cuda"), wanted=20)
    found = Bench(tiny(method, model__name=model), effort).everything(stages=True).to_dict()
    assert found["captured"]
    assert found["eager"]["calls"] == 20
    assert found["eager_over_captured"] > 0
    assert 0 < found["floor"]["floor_ms"] <= found["step"]["median_ms"]
    assert found["floor"]["rates"]["arithmetic"] == "bfloat16"
    assert found["peak_memory_bytes"] > 1e5
    assert all(stage["median_ms"] >= 0 for stage in found["stages"] if stage["stage"] != "other")
    assert found["loop_steps_per_second"] > 0


@pytest.mark.gpu
@on_gpu
def test_the_fused_network_has_the_operations_of_the_plain_one():
    effort = Effort(torch.device("cuda"), wanted=1)
    bench = Bench(tiny("fixmatch", model__name="wrn-10-2"), effort)
    counts = []
    for fusible in (True, False):
        state = bench.build(graph=False)
        for network in (state.online, state.average):
            assert isinstance(network.backbone, WideResNet)
            network.backbone.fusible = fusible
        counts.append(cost.count_products(partial(state.compute, *state.draw_indices())))
    assert counts[0] == counts[1] > 0
