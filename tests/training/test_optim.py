import copy
import math

import pytest
import torch
from torch import nn

from aggmatch.training.optim import SGD, OptimSettings, average_decay, cosine_rate, update_average


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3 * 4, 2))


def backward(model: nn.Module, seed: int) -> None:
    model(torch.randn(5, 1, 4, 4, generator=torch.Generator().manual_seed(seed))).square().mean().backward()


def test_sgd_takes_the_same_steps_as_torchs_with_decay_on_kernels_only():
    ours, theirs = network(), network()
    kernels = [p for p in theirs.parameters() if p.ndim > 1]
    others = [p for p in theirs.parameters() if p.ndim == 1]
    groups = [{"params": kernels, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    reference = torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True)
    optimizer = SGD(ours, OptimSettings(lr=0.05, momentum=0.9, weight_decay=0.1))
    for step in range(5):
        for model in (ours, theirs):
            backward(model, step)
        reference.step()
        reference.zero_grad()
        optimizer.step(torch.tensor(0.05))
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)
        assert a.grad is None


def test_sgd_continues_from_its_state():
    whole, resumed = network(), network()
    first, second = SGD(whole, OptimSettings()), SGD(resumed, OptimSettings())
    for step in range(4):
        backward(whole, step)
        first.step(torch.tensor(0.1))
        if step == 1:
            resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
            second.load_state_dict(copy.deepcopy(first.state_dict()))
        elif step > 1:
            backward(resumed, step)
            second.step(torch.tensor(0.1))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


@pytest.mark.parametrize(
    ("progress", "share"), [(0.0, 1.0), (0.5, math.cos(7 * math.pi / 32)), (1.0, math.cos(7 * math.pi / 16))]
)
def test_the_rate_falls_along_seven_sixteenths_of_a_cosine(progress, share):
    assert cosine_rate(0.03, torch.tensor(progress)).item() == pytest.approx(0.03 * share)


def test_the_average_moves_towards_the_network_by_one_minus_its_decay():
    online, average = network(0), network(1)
    before = [p.clone() for p in average.parameters()]
    update_average(average, online, torch.tensor(0.75), copy_statistics=False)
    for a, b, o in zip(average.parameters(), before, online.parameters(), strict=True):
        torch.testing.assert_close(a, 0.75 * b + 0.25 * o)


@pytest.mark.parametrize("copied", [True, False])
def test_statistics_are_copied_where_the_average_has_none_of_its_own(copied):
    online, average = network(), network()
    backward(online, 0)
    update_average(average, online, torch.tensor(0.9), copy_statistics=copied)
    pairs = list(zip(average.buffers(), online.buffers(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs) == copied


def test_a_warm_average_forgets_fast_at_first():
    settings = OptimSettings(average=0.99, average_warmup=True)
    decays = [average_decay(settings, torch.tensor(float(step))).item() for step in (0, 10, 10_000)]
    assert decays == pytest.approx([0.1, 11 / 20, 0.99])
    assert average_decay(OptimSettings(average=0.99), torch.tensor(0.0)).item() == pytest.approx(0.99)
