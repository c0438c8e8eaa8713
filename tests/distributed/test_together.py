"""Two processes over gloo learn the same as one: every method, every norm, and the pass in Triton kernels."""

import pytest
import torch
from tests.conftest import made_once
from tests.distributed.pair import CASES, STEPS, found_by_pair, norm_cases, normalized, run_pair, trained

from aggmatch.distributed import Processes

pytestmark = pytest.mark.usefixtures("one_thread")
TOLERANCE = 1e-5
"""Largest difference from one process after six steps: the processes add up rounded sums in another order."""
SENSITIVE = {"paws": 0.02, "aggmatch, cold start": 1e-3}
"""The same for cases whose gradients grow with small differences: sharp targets, or tasks on few images."""
FIRST = 2
"""Steps after which small differences have not grown in any case."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """What two processes found."""
    folder = made_once(tmp_path_factory, "pair", lambda folder: run_pair("everything", folder))
    return found_by_pair("everything", folder)


@pytest.mark.parametrize("name", CASES)
def test_losses_queues_and_weights_are_those_of_one_process(pair, name):
    alone, together = trained(name, Processes()), pair[0]["methods"][name]
    tolerance = SENSITIVE.get(name, TOLERANCE)
    assert together["losses"][:FIRST] == pytest.approx(alone["losses"][:FIRST], abs=TOLERANCE)
    assert together["losses"] == pytest.approx(alone["losses"], abs=tolerance)
    assert together["state"].keys() == alone["state"].keys()
    for key, tensor in alone["state"].items():
        torch.testing.assert_close(together["state"][key], tensor, atol=tolerance, rtol=tolerance, msg=key)


@pytest.mark.parametrize("name", CASES)
def test_both_processes_hold_exactly_the_same_state(pair, name):
    first, second = (found["methods"][name] for found in pair)
    assert first["losses"] == second["losses"]
    for key, tensor in first["state"].items():
        assert torch.equal(tensor, second["state"][key]), key


@pytest.mark.parametrize("name", CASES)
def test_a_divided_evaluation_is_exact(pair, name):
    for found in pair:
        together, alone = found["methods"][name]["together"], found["methods"][name]["alone"]
        assert len(together) == 1500
        assert torch.equal(together, alone)


def test_statistics_of_each_process_give_other_losses_but_one_state(pair):
    local, synchronized = pair[0]["local"], pair[0]["methods"]["fixmatch"]
    assert local["losses"] != pytest.approx(synchronized["losses"], abs=1e-3)
    assert local["losses"] == pytest.approx(synchronized["losses"], abs=1)
    for key, tensor in local["state"].items():
        assert torch.equal(tensor, pair[1]["local"]["state"][key]), key


def test_gradients_are_averaged_by_one_operation_per_step(pair):
    assert [found["reductions"] for found in pair] == [STEPS, STEPS]


def interleaved(parts):
    """Rows of two processes in the order of the whole batch."""
    return torch.stack(parts, 1).flatten(0, 1)


def check_whole(alone, parts, rows):
    """Compare what one process found with what two found; `rows` are divided, and gradients of parameters add up."""
    for key, whole in alone.items():
        found = [part[key] for part in parts]
        if key in rows:
            both = interleaved(found)
        elif key.startswith("gradient"):
            both = found[0] + found[1]
        else:
            assert torch.equal(*found), key
            both = found[0]
        torch.testing.assert_close(both, whole, atol=1e-4, rtol=1e-4, msg=key)


@pytest.mark.parametrize("name", norm_cases())
def test_synchronised_batch_norm_is_that_of_the_whole_batch(pair, name):
    check_whole(normalized(Processes())[name], [found["norms"][name] for found in pair], ("x", "y"))


def test_the_pass_in_triton_kernels_is_that_of_the_whole_batch(pair):
    from aggmatch.models.wide_resnet import WideResNet

    torch.manual_seed(0)
    network = WideResNet(3, 10, 1)
    x = torch.randn(8, 3, 4, 4)
    features = network(x, 4)
    (features * torch.arange(8 * network.features).sin().view(8, -1))[:4].sum().backward()
    gradients = {f"gradient of {key}": value.grad for key, value in network.named_parameters()}
    counters = {key for key in network.state_dict() if key.endswith("num_batches_tracked")}
    alone = {"y": features.detach(), **network.state_dict(), **gradients}
    check_whole({key: value for key, value in alone.items() if key not in counters}, [f["fused"] for f in pair], "y")
