"""NCCL inside the captured step, with one process: the same step, with every operation of several processes."""

import gc
from collections.abc import Iterator

import pytest
import torch
from tests.distributed.pair import environment, free_port
from tests.training.test_cuda_graph import assert_alike, make, on_gpu

from aggmatch.distributed import Processes, joined
from aggmatch.methods import METHODS
from aggmatch.models.shared_norm import synchronize
from aggmatch.models.wide_resnet import WideResNet
from aggmatch.training.cuda_graph import WARM_CALLS
from aggmatch.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("exact_convolutions")


class Dividing(Processes):
    """One process that does all that several do: it gathers rows and shares the statistics of BatchNorm."""

    divides = True


@pytest.fixture(scope="module")
def connected() -> Iterator[Processes]:
    """This process, connected to itself by NCCL."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(0, 1, free_port()).items():
            patch.setenv(name, value)
        with joined() as processes:
            yield processes
            gc.collect()  # captured steps, before the connection that they use


def dividing(processes: Processes) -> Processes:
    """The same process, which also gathers and shares."""
    return Dividing(0, 1, 0, processes.heartbeat, processes.store)


@on_gpu
@pytest.mark.parametrize("all_operations", [False, True])
@pytest.mark.parametrize("model", ["small-4", "wrn-10-2"])  # the wide one uses fused kernels
@pytest.mark.parametrize("method", METHODS.names())
def test_the_captured_step_with_nccl_equals_the_one_without(
    toy_data, toy_split, connected, method, model, all_operations
):
    processes = dividing(connected) if all_operations else connected
    alone = make(toy_data, toy_split, method, model__name=model)
    together = Trainer(alone.settings, toy_data, toy_split, torch.device("cuda"), processes=processes)
    for _ in range(WARM_CALLS + 5):
        alone.step()
        together.step()
    assert together.graph is not None
    assert_alike(alone, together)
    assert alone.meters.read() == pytest.approx(together.meters.read(), rel=1e-2, abs=1e-3)
    assert torch.equal(alone.generator.get_state(), together.generator.get_state())


class Twins(Processes):
    """Two processes with equal rows, so that this one knows the values of the other."""

    def gather(self, part: torch.Tensor) -> torch.Tensor:
        return torch.stack([part, part])


@on_gpu
@pytest.mark.parametrize("targets", [0, 4])
def test_fused_passes_combine_the_statistics_of_two_processes(targets):
    from aggmatch.models.fused import fused_features

    torch.manual_seed(0)
    x = torch.randn(8, 3, 16, 16, device="cuda")
    twice = torch.cat([part.repeat(2, 1, 1, 1) for part in x.split([8 - targets, targets])])
    found = []
    for processes, images in ((Processes(), twice), (Twins(0, 2), x)):
        torch.manual_seed(1)
        network = WideResNet(3, 10, 1).cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if processes.divides:
            synchronize(network, processes)
        count = targets * len(images) // len(x)
        features = fused_features(network, images.contiguous(memory_format=torch.channels_last), count)
        features[: len(images) - count].square().sum().backward()
        statistics = [tensor for name, tensor in network.state_dict().items() if "running" in name]
        found.append((features[: 8 - targets].detach(), [p.grad for p in network.parameters()], statistics))
    (whole, gradients, statistics), (half, half_gradients, half_statistics) = found
    torch.testing.assert_close(half, whole, atol=1e-3, rtol=1e-3)
    for expected, gradient in zip(gradients, half_gradients, strict=True):
        scale = float(expected.abs().max())
        torch.testing.assert_close(2 * gradient, expected, atol=5e-3 * scale, rtol=5e-3)
    for expected, statistic in zip(statistics, half_statistics, strict=True):
        torch.testing.assert_close(statistic, expected, atol=1e-4, rtol=1e-4)
