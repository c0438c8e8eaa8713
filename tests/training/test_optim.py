import copy
import math

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from aggmatch.settings import OptimSettings, resolve
from aggmatch.training.optim import SGD, average_decay, learning_rate, update_average


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3 * 4, 2))


def backward(model: nn.Module, seed: int) -> None:
    model(torch.randn(5, 1, 4, 4, generator=torch.Generator().manual_seed(seed))).square().mean().backward()


@pytest.mark.parametrize("nesterov", [True, False])
def test_sgd_equals_torchs_sgd_with_weight_decay_on_kernels_only(nesterov):
    ours, theirs = network(), network()
    kernels = [p for p in theirs.parameters() if p.ndim > 1]
    others = [p for p in theirs.parameters() if p.ndim == 1]
    groups = [{"params": kernels, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    reference = torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=nesterov)
    optimizer = SGD(ours, OptimSettings(lr=0.05, momentum=0.9, nesterov=nesterov, weight_decay=0.1))
    for step in range(5):
        for model in (ours, theirs):
            backward(model, step)
        reference.step()
        reference.zero_grad()
        optimizer.step(torch.tensor(0.05))
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)
        assert a.grad is None


def test_parameters_of_a_pretrained_backbone_move_by_a_share_of_the_rate():
    plain, slow = network(), network()
    settings = OptimSettings(momentum=0.0, weight_decay=0.1, backbone_rate=0.25)
    before = [parameter.detach().clone() for parameter in plain.parameters()]
    for model, name in ((plain, ""), (slow, "0.")):
        backward(model, 0)
        SGD(model, settings, name).step(torch.tensor(0.1))
    moved, less = ([b - a for a, b in zip(before, model.parameters(), strict=True)] for model in (plain, slow))
    torch.testing.assert_close(less[0], moved[0] / 4)  # the convolution, whose name starts with "0."
    for usual, same in zip(moved[1:], less[1:], strict=True):
        torch.testing.assert_close(same, usual)


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
def test_the_learning_rate_follows_seven_sixteenths_of_a_cosine(progress, share):
    assert learning_rate(OptimSettings(lr=0.03), torch.tensor(progress)).item() == pytest.approx(0.03 * share)


def test_the_learning_rate_can_end_at_a_share_of_the_largest_one():
    settings = OptimSettings(lr=2.0, final=0.1)
    rates = [learning_rate(settings, torch.tensor(progress)).item() for progress in (0.0, 0.5, 1.0)]
    assert rates == pytest.approx([2.0, 1.1, 0.2])


@pytest.mark.parametrize("final", [None, 0.1])
def test_after_a_warm_up_the_learning_rate_falls_over_the_other_steps(final):
    plain = OptimSettings(lr=2.0, final=final)
    warm = OptimSettings(lr=2.0, final=final, warmup=0.2, warmup_from=0.25)
    grown = [learning_rate(warm, torch.tensor(progress)).item() for progress in (0.0, 0.1, 0.2)]
    assert grown == pytest.approx([0.5, 1.25, 2.0])
    for share in (0.25, 1.0):
        fallen = learning_rate(warm, torch.tensor(0.2 + 0.8 * share))
        assert fallen.item() == pytest.approx(learning_rate(plain, torch.tensor(share)).item(), rel=1e-5)


def test_the_official_schedule_of_paws_is_reproduced():
    # 600 epochs of 195 steps: ten of them grow from 0.8 to 3.2, the others fall to 0.032.
    settings = resolve({"method.name": "paws", "data.name": "cifar10"}).optim
    epochs = {0: 0.8, 5: 2.0, 10: 3.2, 305: (3.2 + 0.032) / 2, 600: 0.032}
    for epoch, rate in epochs.items():
        assert learning_rate(settings, torch.tensor(epoch / 600)).item() == pytest.approx(rate, rel=1e-4)


def test_the_average_moves_towards_the_network_by_one_minus_its_decay():
    online, average = network(0), network(1)
    before = [p.clone() for p in average.parameters()]
    update_average(average, online, torch.tensor(0.75), copy_statistics=False)
    for a, b, o in zip(average.parameters(), before, online.parameters(), strict=True):
        torch.testing.assert_close(a, 0.75 * b + 0.25 * o)


@pytest.mark.parametrize("copied", [True, False])
def test_statistics_are_copied_on_request(copied):
    online, average = network(), network()
    backward(online, 0)
    update_average(average, online, torch.tensor(0.9), copy_statistics=copied)
    pairs = list(zip(average.buffers(), online.buffers(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs) == copied


def test_the_decay_of_the_average_grows_during_its_warmup():
    settings = OptimSettings(average=0.99, average_warmup=True)
    decays = [average_decay(settings, torch.tensor(float(step))).item() for step in (0, 10, 10_000)]
    assert decays == pytest.approx([0.1, 11 / 20, 0.99])
    steady = OptimSettings(average=0.99, average_warmup=False)
    assert average_decay(steady, torch.tensor(0.0)).item() == pytest.approx(0.99)


def test_lars_scales_kernels_by_its_definition_and_treats_the_rest_like_sgd():
    ours, theirs = network(), network().double()
    settings = OptimSettings(optimizer="lars", momentum=0.8, weight_decay=0.1, trust=0.02)
    optimizer = SGD(ours, settings)
    velocity = {name: torch.zeros_like(parameter) for name, parameter in theirs.named_parameters()}
    for step in range(4):
        backward(ours, step)
        theirs.zero_grad()
        images = torch.randn(5, 1, 4, 4, generator=torch.Generator().manual_seed(step))
        theirs(images.double()).square().mean().backward()
        with torch.no_grad():
            for name, parameter in theirs.named_parameters():
                gradient = parameter.grad
                assert gradient is not None
                if parameter.ndim > 1:
                    size = parameter.square().sum().sqrt()
                    ratio = 0.02 * size / (gradient.square().sum().sqrt() + 0.1 * size)
                    gradient = ratio * (gradient + 0.1 * parameter)
                velocity[name] = 0.8 * velocity[name] + gradient
                parameter.sub_(0.5 * (gradient + 0.8 * velocity[name]))
        optimizer.step(torch.tensor(0.5))
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-6)


def test_lars_moves_kernels_by_a_share_of_their_norm_for_every_scale_of_the_loss():
    moved = []
    for scale in (1e-3, 1e3):
        model = nn.Linear(4, 3, bias=False)
        nn.init.constant_(model.weight, 0.5)
        before = model.weight.detach().clone()
        (scale * model(torch.ones(2, 4)).sum()).backward()
        settings = OptimSettings(optimizer="lars", momentum=0.0, weight_decay=0.0, trust=0.01)
        SGD(model, settings).step(torch.tensor(2.0))
        moved.append(((model.weight.detach() - before).norm() / before.norm()).item())
    assert moved == pytest.approx([0.02, 0.02])


def test_lars_can_move_a_kernel_of_zeros():
    model = nn.Linear(4, 3, bias=False)
    nn.init.zeros_(model.weight)
    model(torch.ones(2, 4)).sum().backward()
    SGD(model, OptimSettings(optimizer="lars", momentum=0.0)).step(torch.tensor(0.5))
    torch.testing.assert_close(model.weight.detach(), torch.full((3, 4), -1.0))


def test_lars_keeps_a_kernel_with_a_zero_gradient_finite():
    model = nn.Linear(4, 3, bias=False)
    before = model.weight.detach().clone()
    (0 * model(torch.ones(2, 4)).sum()).backward()
    SGD(model, OptimSettings(optimizer="lars", weight_decay=0.0)).step(torch.tensor(0.5))
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("optimizer", ["sgd", "lars"])
def test_a_step_reads_no_value_on_the_host(optimizer):
    with FakeTensorMode():  # reading a value of a fake tensor is an error
        model = network()
        backward(model, 0)
        SGD(model, OptimSettings(optimizer=optimizer)).step(torch.tensor(0.1))
    assert all(parameter.grad is None for parameter in model.parameters())
