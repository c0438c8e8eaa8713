"""Target-only images: they are in the forward pass but have no backward pass."""

import copy
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aggmatch.data import load, make_split
from aggmatch.methods import METHODS, Batch
from aggmatch.models import Network
from aggmatch.models.small import SmallNet
from aggmatch.models.target_only import BatchNorm, convolve
from aggmatch.models.wide_resnet import WideResNet
from aggmatch.settings import resolve
from aggmatch.training.trainer import Trainer

LEARNED, CONSTANT = 24, 20


class PlainBackbone(nn.Module):
    """A backbone that knows nothing of target-only images."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3, 2), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) → (B, 6)."""
        return self.layers(x).mean((2, 3))


def images() -> Tensor:
    """Structured images: noise images would all have the same statistics."""
    torch.manual_seed(0)
    coarse = torch.randn(LEARNED + CONSTANT, 3, 4, 4)
    return F.interpolate(coarse, size=16, mode="bilinear") + 0.2 * torch.randn(LEARNED + CONSTANT, 3, 16, 16)


def gradients(network: nn.Module, targets: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Features, and gradients of a loss of the learning images."""
    torch.manual_seed(1)
    features = network(images(), targets)
    loss = F.cross_entropy(features[:LEARNED], torch.randint(features.shape[1], (LEARNED,)))
    loss.backward()
    return features.detach(), {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


@pytest.fixture(params=["small", "wide"])
def network(request) -> nn.Module:
    torch.manual_seed(2)
    return SmallNet(3, 8) if request.param == "small" else WideResNet(3, 10, 1)


def test_the_forward_pass_and_the_running_statistics_are_those_of_all_images(network):
    other = copy.deepcopy(network)
    features, _ = gradients(network, CONSTANT)
    expected, _ = gradients(other, 0)
    torch.testing.assert_close(features, expected, atol=1e-5, rtol=1e-5)
    for (name, left), (_, right) in zip(network.named_buffers(), other.named_buffers(), strict=True):
        if "running" in name:
            torch.testing.assert_close(left, right, atol=1e-6, rtol=1e-5)


def test_at_initial_weights_the_gradient_is_close_to_that_of_all_images(network):
    other = copy.deepcopy(network)
    _, found = gradients(network, CONSTANT)
    _, expected = gradients(other, 0)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert F.cosine_similarity(gradient.flatten(), expected[name].flatten(), dim=0) > 0.95, name
        assert 0.8 < gradient.norm() / expected[name].norm() < 1.25, name


@pytest.mark.parametrize("backbone", [SmallNet(3, 8), PlainBackbone()], ids=["own layers", "plain layers"])
def test_an_exact_network_has_the_gradient_of_a_pass_in_which_all_images_learn(backbone):
    network = Network(backbone, 4, 3)
    labels = torch.randint(4, (LEARNED,), generator=torch.Generator().manual_seed(0))
    found = []
    for exact in (True, False):
        network.exact = exact
        network.zero_grad()
        logits = network(128 + 60 * images(), targets=CONSTANT if exact else 0).logits
        F.cross_entropy(logits[:LEARNED], labels).backward()
        found.append({name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None})
    for name, gradient in found[0].items():
        torch.testing.assert_close(gradient, found[1][name], atol=1e-6, rtol=1e-4)


# Trained weights and real views ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained() -> Trainer:
    """FixMatch on digits after a hundred steps."""
    changes = {"data.name": "digits", "data.labels": 40, "method.name": "fixmatch", "model.name": "small-8"}
    settings = resolve(changes | {"train.batch": 10, "runtime.device": "cpu"})
    data = load("digits", Path("nowhere"))
    trainer = Trainer(settings, data, make_split(data, settings.data), torch.device("cpu"))
    for _ in range(100):
        trainer.step()
    return trainer


def mean_gradients(trainer: Trainer, batches: Sequence[Batch], *, exact: bool) -> dict[str, Tensor]:
    """Gradients of the kernels, summed over batches."""
    network = copy.deepcopy(trainer.online).train()
    network.exact = exact
    for batch in batches:
        trainer.method.step(batch, network, trainer.average).loss.backward()
    return {name: p.grad for name, p in network.named_parameters() if p.grad is not None and p.ndim > 1}


def test_on_real_views_the_gradient_points_in_the_same_direction_but_is_not_exact(trained):
    batches = [trained.make_batch(*trained.draw_indices()) for _ in range(20)]
    found, exact = (mean_gradients(trained, batches, exact=exact) for exact in (False, True))
    for name, gradient in found.items():
        assert F.cosine_similarity(gradient.flatten(), exact[name].flatten(), dim=0) > 0.96, name
    whole, expected = (torch.cat([gradient.flatten() for gradient in part.values()]) for part in (found, exact))
    assert F.cosine_similarity(whole, expected, dim=0) > 0.98
    assert 0.02 < (whole - expected).norm() / expected.norm() < 0.2


@pytest.mark.parametrize("method", METHODS.names())
def test_every_method_can_train_with_the_exact_gradient(toy_state, method):
    state = toy_state(method, train__exact_gradient=True)
    assert state.online.exact
    for _ in range(2):
        state.step()
    assert state.finite


def test_target_only_images_get_no_gradient():
    norm = BatchNorm(3)
    x = torch.randn(6, 3, 4, 4, requires_grad=True)
    (norm(x, targets=2) * torch.randn(6, 3, 4, 4)).sum().backward()
    assert x.grad is not None
    assert x.grad[4:].abs().max() == 0
    assert x.grad[:4].abs().min() > 0


def test_values_and_gradients_keep_their_channels_last():
    norm, layer = BatchNorm(4), nn.Conv2d(4, 4, 3, padding=1)
    x = torch.randn(6, 4, 5, 5).contiguous(memory_format=torch.channels_last).requires_grad_()
    y = norm(convolve(layer, x, 2), 2)
    (gradient,) = torch.autograd.grad(y.square().mul(torch.rand_like(y)).sum(), x)
    for values in (y, gradient):
        assert values.is_contiguous(memory_format=torch.channels_last)


def test_the_gradient_has_no_part_along_shift_and_scale_of_the_input():
    torch.manual_seed(0)
    norm = BatchNorm(3, eps=1e-9).double()
    norm.weight.data.uniform_(0.5, 1.5)
    x = torch.randn(7, 3, 4, 4, dtype=torch.double)
    x[4:] = 2 * x[4:] + 3  # target-only images have other moments
    x.requires_grad_()
    (norm(x, targets=3) * torch.randn_like(x)).sum().backward()
    assert x.grad is not None
    assert x.grad.abs().max() > 0.1
    assert x.grad.sum((0, 2, 3)).abs().max() < 1e-7
    assert (x.grad * x).sum((0, 2, 3)).abs().max() < 1e-7


def test_weight_and_bias_learn_from_the_learning_images_exactly():
    torch.manual_seed(0)
    norm, plain = BatchNorm(3), nn.BatchNorm2d(3)
    x, direction = torch.randn(7, 3, 4, 4), torch.randn(7, 3, 4, 4)
    x[4:] = 2 * x[4:] + 3
    (norm(x.clone().requires_grad_(), targets=3) * direction)[:4].sum().backward()
    (plain(x) * direction)[:4].sum().backward()
    torch.testing.assert_close(norm.weight.grad, plain.weight.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(norm.bias.grad, plain.bias.grad, rtol=1e-4, atol=1e-4)


def test_in_bfloat16_the_gradient_equals_that_of_float32_up_to_rounding():
    torch.manual_seed(0)
    x, direction = torch.randn(7, 3, 6, 6).bfloat16(), torch.randn(7, 3, 6, 6).bfloat16()
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        leaf = x.detach().to(dtype).requires_grad_()
        (BatchNorm(3)(leaf, targets=3) * direction.to(dtype)).sum().backward()
        assert leaf.grad is not None
        found.append(leaf.grad.float())
    torch.testing.assert_close(found[0], found[1], atol=0.03, rtol=0.03)


def test_when_all_images_learn_it_is_plain_batch_norm():
    torch.manual_seed(0)
    shared, plain = BatchNorm(3), nn.BatchNorm2d(3)
    x, weight = torch.randn(6, 3, 4, 4), torch.randn(6, 3, 4, 4)
    for norm in (shared, plain):
        (norm(x) * weight).sum().backward()
    torch.testing.assert_close(shared.weight.grad, plain.weight.grad)
    torch.testing.assert_close(shared.running_var, plain.running_var)
