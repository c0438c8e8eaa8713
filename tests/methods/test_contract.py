"""What every method must keep, run for each of them."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from aggmatch.data import Images
from aggmatch.errors import AggMatchError
from aggmatch.evaluation import evaluate
from aggmatch.methods import Method, known_methods, load_method

METHODS = known_methods()

HOST_READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::unique", "aten::_unique2"}


class NoHostReads(TorchDispatchMode):
    """Fails on operators that wait for the device: they could not be captured in a graph."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        if name in HOST_READS:
            raise AssertionError(f"{name} reads from the device inside a step")
        if name in ("aten::index", "aten::index_put_", "aten::index_put"):
            for index in args[1]:
                if index is not None and index.dtype == torch.bool:
                    raise AssertionError(f"{name} with a mask has a data-dependent shape")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", METHODS)
def test_a_method_says_what_it_is(name):
    method = load_method(name)
    assert method.__doc__ != Method.__doc__
    assert (method.__doc__ or "").splitlines()[0].endswith(".")
    assert method.reference or name == "supervised"
    assert method.config_type().to_dict() is not None


@pytest.mark.parametrize("name", METHODS)
def test_a_step_gives_a_finite_loss_its_parts_and_gradients(name, toy_state):
    state = toy_state(name)
    for _ in range(3):
        state.step()
    result = state.method.step(state.make_batch(*state.draw_indices()), state.online, state.average)
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


@pytest.mark.parametrize("name", METHODS)
def test_a_method_learns_the_toy_problem(name, toy_state, toy_data, toy_split):
    state = toy_state(name)
    labeled = Images(toy_data.train.pixels[toy_split.labeled], toy_split.labels)
    before = evaluate(state.method, state.online, toy_data.test, labeled).accuracy
    state.step()
    first = state.meters.read()[state.method.watched]
    for _ in range(39):
        state.step()
    last = state.meters.read()[state.method.watched]
    assert last < first / 2
    after = evaluate(state.method, state.online, toy_data.test, labeled).accuracy
    assert after > 80
    assert after >= before  # neighbours may be right from the start


@pytest.mark.parametrize("name", METHODS)
def test_a_step_reads_nothing_from_the_device(name, toy_state):
    state = toy_state(name)
    state.step()
    with NoHostReads():
        state.step()


def test_the_detector_of_host_reads_detects_them():
    with NoHostReads():
        with pytest.raises(AssertionError, match="reads from the device"):
            torch.ones(()).item()
        with pytest.raises(AssertionError, match="data-dependent"):
            torch.ones(3)[torch.ones(3) > 0]


@pytest.mark.parametrize("name", METHODS)
def test_steps_depend_on_the_seed_alone(name, toy_state):
    states = [toy_state(name), toy_state(name), toy_state(name, train__seed=1)]
    for state in states:
        torch.manual_seed(int(torch.randint(1000, ())))  # whatever the global generator holds
        for _ in range(3):
            state.step()
    first, again, other = (list(state.online.parameters()) for state in states)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_a_restored_state_continues_bit_for_bit(name, toy_state):
    whole, stopped, resumed = toy_state(name), toy_state(name), toy_state(name)
    for _ in range(6):
        whole.step()
        if stopped.steps_done < 3:
            stopped.step()
    resumed.restore(stopped.capture())
    for _ in range(3):
        resumed.step()
    expected, got = whole.capture(), resumed.capture()
    assert expected.facts == got.facts
    assert all(torch.equal(tensor, got.tensors[key]) for key, tensor in expected.tensors.items())


def test_an_unknown_method_gets_the_closest_match():
    with pytest.raises(AggMatchError, match=r"Unknown method 'aggmach'\. Did you mean 'aggmatch'\?"):
        load_method("aggmach")


@pytest.mark.parametrize("name", ["nowhere:Method", "json:dumps", "json:nothing", ":x"])
def test_a_foreign_method_that_is_none_is_refused(name):
    with pytest.raises(AggMatchError, match="Cannot load method"):
        load_method(name)


def test_a_foreign_method_is_found_by_module_and_class():
    assert load_method("aggmatch.methods.fixmatch:FixMatch") is load_method("fixmatch")
    assert issubclass(load_method("fixmatch"), Method)
