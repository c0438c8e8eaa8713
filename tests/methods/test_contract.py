"""The contract of a method, checked for every registered method."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.methods.steps import next_batch, step_result
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from aggmatch import methods
from aggmatch.config import describe
from aggmatch.data import Images
from aggmatch.errors import AggMatchError
from aggmatch.evaluation import evaluate
from aggmatch.inference.model import TrainedModel
from aggmatch.methods import METHODS, Batch, Method, StepResult, load_method
from aggmatch.settings import resolve
from aggmatch.training.begin import start

NAMES = METHODS.names()
BACKBONES = [f"{Path(__file__).parent / 'backbones.py'}:{name}" for name in ("FeatureAndLogits", "FeatureAlone")]

ABLATIONS = {
    "no momentum encoder": {"method__momentum_encoder": False},
    "no refinement": {"method__refine": False},
    "no balance of classes": {"method__class_balanced": False},
    "no confidence": {"method__confidence": "off"},
    "thresholding": {"method__confidence": "thresholding"},
    "subsets of different images": {"method__disjoint": "images"},
    "sure images, and unsure ones by their kept classes": {"method__sure_only": True, "method__shrinking_weight": 1.0},
}
VARIANTS = [
    *(pytest.param(name, {}, id=name) for name in NAMES),
    *(pytest.param("aggmatch", changes, id=f"aggmatch, {name}") for name, changes in ABLATIONS.items()),
]
"""Every method, and AggMatch with each of its parts replaced."""
PHASES = [
    pytest.param("aggmatch", {"method__contrast_steps": 5}, id="contrast"),
    pytest.param("aggmatch", {"method__propagation_steps": 5, "method__labeled_views": "both"}, id="propagation"),
    pytest.param("aggmatch", {"recipe": "cold-start", "method__warmup": 2}, id="cold start"),
]
"""The first steps that AggMatch may have."""


class NoReadingOperators(TorchDispatchMode):
    """Fails on operators that return values to the host, or whose shape depends on values on the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        if name in ("aten::index", "aten::index_put_", "aten::index_put"):  # have these tags only because of masks
            if any(index is not None and index.dtype == torch.bool for index in args[1]):
                raise AssertionError(f"{name} with a mask has a data-dependent shape")
        elif {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags):
            raise AssertionError(f"{name} reads from the device")
        return func(*args, **(kwargs or {}))


class NoCopiesToTheHost(TorchFunctionMode):
    """Fails on functions that copy a tensor to the host. On a CPU they call no operator."""

    copies = {Tensor.cpu, Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__repr__, Tensor.__format__}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        places = [place for place in (*args[1:], *(kwargs or {}).values()) if isinstance(place, str)]
        if func in self.copies or (func is Tensor.to and "cpu" in places):
            raise AssertionError(f"{func.__name__} reads from the device")
        return func(*args, **(kwargs or {}))


@contextmanager
def no_host_reads() -> Iterator[None]:
    """Fails on everything that waits for the device and so cannot be captured in a graph; views are made as there."""
    as_on_a_gpu = patch("aggmatch.augment.randaugment.shapes_may_vary", lambda _: False)
    with as_on_a_gpu, NoCopiesToTheHost(), NoReadingOperators():
        yield


class OnMeta(TorchFunctionMode):
    """Stands for a GPU: what a step creates on the device of its generator is on the device `meta`.

    Operators refuse to mix tensors of this device with others, as they do on a GPU. Its tensors have no values.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == torch.device("cpu"):
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def moved(batch: Batch) -> Batch:
    """The batch on the device `meta`."""

    def move(value):
        if isinstance(value, tuple):
            return tuple(map(move, value))
        return value.to("meta") if isinstance(value, Tensor) else value

    return replace(batch, **{field.name: move(getattr(batch, field.name)) for field in fields(batch)})


@pytest.mark.parametrize("name", NAMES)
def test_a_method_has_a_description_and_a_reference(name):
    method = load_method(name)
    assert method.__doc__ != Method.__doc__
    assert (method.__doc__ or "").splitlines()[0].endswith(".")
    assert method.reference or name == "supervised"


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_of_a_method_is_documented_and_survives_json(name):
    config_type = load_method(name).config_type
    assert [setting.key for setting in describe(config_type) if not setting.text.endswith(".")] == []
    config = config_type()
    assert config_type.build(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("name", NAMES)
def test_a_step_returns_a_finite_loss_with_parts_and_gradients(name, toy_state):
    state = toy_state(name)
    for _ in range(3):
        state.step()
    result = step_result(state)
    assert result.loss.ndim == 0
    assert torch.isfinite(result.loss)
    assert state.method.watched in result.parts
    assert all(part.ndim == 0 and not part.requires_grad for part in result.parts.values())
    result.loss.backward()
    untrained = tuple(f"{module}." for module in state.method.untrained)
    for key, parameter in state.online.named_parameters():
        assert (parameter.grad is None) == key.startswith(untrained), key
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), key
    assert all(parameter.grad is None for parameter in state.average.parameters())


@pytest.mark.parametrize(("name", "changes"), VARIANTS)
def test_a_method_learns_the_toy_problem_and_so_does_its_average(name, changes, toy_state, toy_data, toy_split):
    state = toy_state(name, optim__average=0.8, **changes)
    labeled = Images(toy_data.train.pixels[toy_split.labeled], toy_split.labels)
    before = evaluate(state.method, state.online, toy_data.test, labeled).accuracy
    state.step()
    first = state.meters.read()[state.method.watched]
    for _ in range(39):
        state.step()
    last = state.meters.read()[state.method.watched]
    assert last < first / 2
    for network in (state.online, state.average):
        after = evaluate(state.method, network, toy_data.test, labeled).accuracy
        assert after > 80
        assert after >= before  # PAWS may be right from the start


@pytest.mark.parametrize(("name", "changes"), VARIANTS)
def test_a_step_reads_nothing_from_the_device(name, changes, toy_state):
    state = toy_state(name, **changes)
    for step in range(4):  # more than the warm-up of any method
        state.method.refresh(step)
        with no_host_reads():
            state.compute(*state.draw_indices())


@pytest.mark.parametrize(("name", "changes"), [*VARIANTS, *PHASES])
def test_a_step_creates_its_tensors_on_the_device_of_the_batch(name, changes, toy_state, monkeypatch):
    state = toy_state(name, **changes)
    state.method.refresh(0)
    batch = moved(next_batch(state))
    for module in (state.online, state.average, state.method):
        module.to("meta")
    monkeypatch.setattr(torch, "autocast", lambda *args, **options: nullcontext())  # it does not know the device
    with OnMeta():
        result = state.method.step(batch, state.online, state.average)
    assert {result.loss.device.type, *(part.device.type for part in result.parts.values())} == {"meta"}
    result.loss.backward()


READS = {
    "item": lambda x: x[0].item(),
    "float": lambda x: float(x[0]),
    "if": lambda x: 1 if x[0] else 2,
    "index": lambda x: [1, 2, 3][x[0].long()],
    "equal": lambda x: torch.equal(x, x + 1),
    "allclose": lambda x: torch.allclose(x, x + 1),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0),
    "unique": lambda x: x.unique(),
    "one_hot": lambda x: F.one_hot(x.long()),
    "bincount": lambda x: torch.bincount(x.long(), minlength=3),
    "repeat_interleave": lambda x: torch.repeat_interleave(x, x.long()),
    "masked_select": lambda x: x.masked_select(x > 0),
    "mask": lambda x: x[x > 0],
    "write by mask": lambda x: x.__setitem__(x > 0, x + 1),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "to device": lambda x: x.to(device="cpu"),
    "numpy": lambda x: x.numpy(),
    "asarray": lambda x: np.asarray(x),
    "text": lambda x: f"{x} {x!r}",
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_the_detector_of_host_reads_detects(read):
    tensor = torch.ones(3)
    read(tensor)
    with no_host_reads(), pytest.raises(AssertionError, match="reads from the device|data-dependent"):
        read(tensor)


def test_the_detector_of_host_reads_ignores_operations_on_the_device():
    tensor, index = torch.arange(3.0), torch.tensor([2, 0])
    with no_host_reads():
        tensor[index] += torch.where(tensor[index] > 0, 1.0, 2.0).to(tensor.device, torch.float32)
        tensor.masked_fill_(tensor > 2.5, 0.0).repeat_interleave(2)
    assert tensor.tolist() == [2, 1, 0]


@pytest.mark.parametrize("name", NAMES)
def test_steps_depend_on_the_seed_alone(name, toy_state):
    states = [toy_state(name), toy_state(name), toy_state(name, train__seed=1)]
    for state in states:
        torch.manual_seed(int(torch.randint(1000, ())))  # the state of the global generator must not matter
        for _ in range(3):
            state.step()
    first, again, other = (list(state.online.parameters()) for state in states)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_a_restored_state_continues_bit_for_bit(name, toy_resume):
    expected, got = toy_resume(name)
    assert expected.facts == got.facts
    assert all(torch.equal(tensor, got.tensors[key]) for key, tensor in expected.tensors.items())


@pytest.mark.parametrize(
    ("loss", "part", "name"), [(torch.ones(3), torch.ones(()), "loss"), (torch.ones(()), torch.ones(3), "mine")]
)
def test_a_loss_with_rows_is_refused_by_its_name(loss, part, name):
    with pytest.raises(AggMatchError, match=name):
        StepResult(loss, {"mine": part})


def test_parts_of_a_result_carry_no_gradient():
    loss = torch.ones((), requires_grad=True) * 2
    result = StepResult(loss, {"loss_labeled": loss})
    assert result.loss.requires_grad
    assert not result.parts["loss_labeled"].requires_grad


# Names -----------------------------------------------------------------------------------------------------------


def test_every_module_of_the_package_is_a_method_or_shared():
    files = {path.stem for path in Path(methods.__file__).parent.iterdir() if not path.stem.startswith("_")}
    assert set(NAMES) == files - {"base", "alignment", "shrinking", "start"}
    for name in NAMES:
        assert load_method(name).__module__.startswith(f"aggmatch.methods.{name}")


def test_an_unknown_method_gets_the_closest_match():
    with pytest.raises(AggMatchError, match="Did you mean 'aggmatch'"):
        load_method("aggmach")


@pytest.mark.parametrize("name", ["nowhere:Method", "json:dumps", "json:nothing", ":x"])
def test_a_name_that_does_not_lead_to_a_method_raises(name):
    with pytest.raises(AggMatchError, match=f"method '{name}'"):
        load_method(name)


def test_a_method_can_be_named_by_module_and_class():
    assert load_method("aggmatch.methods.fixmatch:FixMatch") is load_method("fixmatch")
    assert issubclass(load_method("fixmatch"), Method)


# Plain modules as backbones --------------------------------------------------------------------------------------


@pytest.mark.parametrize("backbone", BACKBONES, ids=lambda name: name.partition(":")[2])
@pytest.mark.parametrize("name", NAMES)
def test_a_plain_module_trains_resumes_and_predicts(name, backbone, toy_state, toy_data, toy_split):
    whole, stopped, resumed = (toy_state(name, model__name=backbone) for _ in range(3))
    before = {key: weight.clone() for key, weight in whole.online.named_parameters()}
    for _ in range(6):
        whole.step()
        if stopped.steps_done < 3:
            stopped.step()
    moved = {key for key, weight in whole.online.named_parameters() if not torch.equal(weight, before[key])}
    assert {key for key in before if key.startswith("backbone.layers.")} <= moved

    resumed.restore(stopped.checkpoint())
    for _ in range(3):
        resumed.step()
    expected, got = whole.checkpoint(), resumed.checkpoint()
    assert all(torch.equal(tensor, got.tensors[key]) for key, tensor in expected.tensors.items())

    assert math.isfinite(whole.meters.read()["loss"])
    labeled = Images(toy_data.train.pixels[toy_split.labeled], toy_split.labels)
    for network in (whole.online, whole.average):
        probs = evaluate(whole.method, network, toy_data.test, labeled).probs
        assert probs.shape == (len(toy_data.test), 3)
        torch.testing.assert_close(probs.sum(-1), torch.ones(len(probs)))


@pytest.mark.parametrize("backbone", BACKBONES, ids=lambda name: name.partition(":")[2])
def test_a_plain_module_learns_the_toy_problem(backbone, toy_state, toy_data):
    state = toy_state("fixmatch", model__name=backbone)
    for _ in range(40):
        state.step()
    assert evaluate(state.method, state.online, toy_data.test).accuracy > 80


@pytest.mark.parametrize("name", ["aggmatch", "featmatch"])
def test_a_run_with_a_plain_module_is_saved_and_predicts(name, tmp_path):
    changes = {"data.name": "digits", "data.labels": 20, "method.name": name, "model.name": BACKBONES[0]}
    changes |= {"train.steps": 2, "train.batch": 4, "train.unlabeled_ratio": 1}
    run = start(resolve(changes), tmp_path / "run")
    for _ in run.train():
        pass
    model = TrainedModel.load(tmp_path / "run", allow=[BACKBONES[0]])
    images = run.data.test.pixels[:5]
    expected = evaluate(run.state.method, run.state.average, Images(images, torch.zeros(5, dtype=torch.long))).probs
    torch.testing.assert_close(model.predict(images), expected)
