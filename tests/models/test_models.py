from itertools import pairwise

import pytest
import torch

from aggmatch.errors import AggMatchError
from aggmatch.models import Network, build_network, frozen_statistics, images_at_once, parameter_count, shorten_memory
from aggmatch.models.registry import FAMILIES
from aggmatch.models.target_only import leaky_relu
from aggmatch.models.wide_resnet import Block
from aggmatch.validate import InvalidValue


def images(n: int = 4, channels: int = 3, size: int = 32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, channels, size, size), dtype=torch.uint8, generator=generator)


def counted_by_hand(depth: int, width: int, classes: int) -> int:
    """Stem, blocks of two convolutions with their BatchNorms, three shortcuts, last BatchNorm, classifier."""
    w = [16, 16 * width, 32 * width, 64 * width]
    blocks = (depth - 4) // 6
    total = 27 * w[0] + 2 * w[3] + w[3] * classes + classes
    for inputs, outputs in pairwise(w):
        total += 9 * inputs * outputs + (2 * blocks - 1) * 9 * outputs * outputs
        total += inputs * outputs if inputs != outputs else 0
        total += 2 * inputs + (2 * blocks - 1) * 2 * outputs
    return total


@pytest.mark.parametrize(
    ("depth", "width", "classes", "millions"),
    [(28, 2, 10, 1.47), (28, 8, 100, 23.4), (16, 4, 10, 2.75), (10, 1, 3, 0.077)],
)
def test_wide_residual_networks_have_the_published_number_of_parameters(depth, width, classes, millions):
    network = build_network(f"wrn-{depth}-{width}", channels=3, classes=classes)
    assert parameter_count(network) == counted_by_hand(depth, width, classes)
    assert parameter_count(network) / 1e6 == pytest.approx(millions, abs=0.006)


@pytest.mark.parametrize(("name", "channels", "size"), [("wrn-10-1", 3, 32), ("wrn-10-1", 1, 20), ("small-8", 1, 8)])
def test_a_network_returns_feature_and_logits(name, channels, size):
    network = build_network(name, channels=channels, classes=7)
    output = network(images(5, channels, size))
    assert output.feature.shape == (5, network.features)
    assert output.logits.shape == (5, 7)
    assert output.logits.dtype == torch.float32
    torch.testing.assert_close(output.logits, network.classifier(output.feature))


@pytest.mark.parametrize("targets", [0, 2])
def test_fixed_statistics_normalise_in_training_as_in_evaluation(targets):
    network = build_network("wrn-10-1", channels=3, classes=7)
    network(images(8))  # statistics of some batch
    network.fixed_norm = True
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    trained = network.train()(images(4, seed=1), targets)
    torch.testing.assert_close(trained.logits, network.eval()(images(4, seed=1)).logits)
    assert network.train().training
    trained.logits.sum().backward()
    assert all(torch.equal(buffer, before[name]) for name, buffer in network.named_buffers())
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize("name", ["wrn-10-1", "small-4", "efficientnet-lite0"])
def test_with_fixed_statistics_target_only_images_have_no_backward_pass(name):
    network = build_network(name, channels=3, classes=7)
    network.fixed_norm = True
    network.train()
    batch = images(6)
    expected = network(batch).logits
    expected[:4].square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in network.named_parameters()}
    network.zero_grad()
    rows: list[int] = []

    def count(module: torch.nn.Module, inputs: object, outputs: tuple[torch.Tensor, ...]) -> None:
        rows.append(len(outputs[0]))

    last = [module for module in network.backbone.modules() if isinstance(module, torch.nn.Conv2d)][-1]
    last.register_full_backward_hook(count)
    logits = network(batch, 2).logits
    torch.testing.assert_close(logits, expected)
    logits.square().sum().backward()
    assert rows == [4]
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name])


@pytest.mark.parametrize(
    "name", ["wrn-28", "wrn-27-2", "wrn-28-0", "wrn-4-2", "wrn-28-2-1", "wrn-28-two", "wrn", "small-0", "small-x"]
)
def test_wrong_numbers_in_the_name_of_a_network_raise(name):
    with pytest.raises(InvalidValue, match=f"model.name must be {FAMILIES[name.split('-')[0]]}, got '{name}'"):
        build_network(name, channels=3, classes=10)


@pytest.mark.parametrize("name", ["resnet50", "wrn_28_2", ""])
def test_an_unknown_network_raises(name):
    with pytest.raises(AggMatchError, match=f"network '{name}'.*aggmatch list models"):
        build_network(name, channels=3, classes=10)


def test_the_width_of_a_small_network_is_optional():
    assert build_network("small", channels=1, classes=2).features == 128
    assert build_network("small-4", channels=1, classes=2).features == 16


@pytest.mark.parametrize("activate_shortcut", [True, False])
def test_a_block_feeds_the_activated_input_to_its_residual_branch(activate_shortcut):
    block = Block(4, 8, stride=2, activate_shortcut=activate_shortcut).eval()
    x = torch.randn(2, 4, 6, 6)
    activated = leaky_relu(block.norm1(x))
    residual = block.conv2(leaky_relu(block.norm2(block.conv1(activated))))
    assert block.shortcut is not None
    torch.testing.assert_close(block(x), block.shortcut(activated if activate_shortcut else x) + residual)


def test_only_the_first_block_activates_its_shortcut():
    blocks = [
        module for module in build_network("wrn-16-1", channels=3, classes=2).modules() if isinstance(module, Block)
    ]
    assert [block.activate_shortcut for block in blocks] == [True] + [False] * 5


def test_weights_start_as_in_fixmatch():
    torch.manual_seed(0)
    network = build_network("wrn-28-2", channels=3, classes=10)
    kernel = network.get_parameter("backbone.blocks.11.conv2.weight")
    assert kernel.std().item() == pytest.approx((2 / (9 * kernel.shape[0])) ** 0.5, rel=0.02)
    weight = network.classifier.weight
    assert weight.std().item() == pytest.approx((2 / (128 + 10)) ** 0.5, rel=0.1)
    norm = network.get_submodule("backbone.norm")
    assert isinstance(norm, torch.nn.BatchNorm2d)
    assert (norm.eps, norm.momentum) == (1e-3, 1e-3)


def test_normalisation_takes_mean_and_deviation_of_the_training_images():
    network = build_network("small-4", channels=3, classes=2)
    pixels = images(5000, 3, 4)
    network.normalize_by(pixels)
    unit = pixels.double() / 255
    torch.testing.assert_close(network.mean.flatten(), unit.mean((0, 2, 3)).float())
    torch.testing.assert_close(network.deviation.flatten(), unit.std((0, 2, 3), correction=0).float())


def test_batches_of_large_images_are_smaller():
    assert [images_at_once(side) for side in (8, 32, 64, 224, 5000)] == [1000, 1000, 250, 20, 1]
    assert images_at_once(224, 4096) == 83


def test_a_constant_channel_does_not_divide_by_zero():
    network = build_network("small-4", channels=1, classes=2)
    pixels = torch.full((3, 1, 8, 8), 7, dtype=torch.uint8)
    network.normalize_by(pixels)
    assert torch.isfinite(network(pixels).logits).all()


def test_the_state_dict_holds_the_normalisation():
    network = build_network("small-4", channels=1, classes=2)
    network.normalize_by(images(100, 1, 8))
    copy: Network = build_network("small-4", channels=1, classes=2)
    copy.load_state_dict(network.state_dict())
    x = images(3, 1, 8)
    torch.testing.assert_close(copy.eval()(x).logits, network.eval()(x).logits)


def statistics(network: Network) -> dict[str, torch.Tensor]:
    """Copies of the running means and variances of every BatchNorm."""
    return {name: buffer.clone() for name, buffer in network.named_buffers() if ".running_" in name}


@pytest.mark.parametrize("name", ["small-4", "wrn-10-1"])
def test_frozen_statistics_stay_while_the_batch_is_normalised_by_itself(name):
    network = build_network(name, channels=1, classes=2).train()
    network(images(8, 1, 8, seed=1))
    before = statistics(network)
    with frozen_statistics(network):
        frozen = network(images(8, 1, 8, seed=2)).logits
    after = statistics(network)
    assert before
    assert all(torch.equal(value, after[key]) for key, value in before.items())

    ordinary = network(images(8, 1, 8, seed=2)).logits
    assert torch.equal(frozen, ordinary)
    assert not torch.equal(frozen, network.eval()(images(8, 1, 8, seed=2)).logits)
    moved = statistics(network)
    assert not any(torch.equal(value, moved[key]) for key, value in before.items())


def test_frozen_statistics_let_gradients_through():
    network = build_network("small-4", channels=1, classes=2).train()
    gradients = []
    for frozen in (True, False):
        network.zero_grad()
        if frozen:
            with frozen_statistics(network):
                output = network(images(8, 1, 8))
        else:
            output = network(images(8, 1, 8))
        output.logits.square().sum().backward()  # after the block, as in training
        gradients.append([parameter.grad for parameter in network.parameters()])
    for left, right in zip(*gradients, strict=True):
        assert left is not None
        assert left.abs().sum() > 0
        torch.testing.assert_close(left, right)


def test_statistics_are_no_longer_frozen_after_an_error():
    network = build_network("wrn-10-1", channels=1, classes=2).train()
    norms = [module for module in network.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    norms[0].momentum = 0.25
    expected = [norm.momentum for norm in norms]
    during: list[float | None] = []

    def fail() -> None:
        with frozen_statistics(network):
            during.extend(norm.momentum for norm in norms)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert during == [0.0] * len(norms)
    assert [norm.momentum for norm in norms] == expected
    assert set(expected) == {0.25, 1e-3}


@pytest.mark.parametrize(("steps", "expected"), [(3, 0.1), (200.0, 0.005), (1000, 1e-3), (50_000, 1e-3)])
def test_running_statistics_forget_faster_but_never_more_slowly_than_the_backbone_wants(steps, expected):
    network = build_network("wrn-10-1", channels=1, classes=2)
    shorten_memory(network, steps)
    norms = [module for module in network.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert {norm.momentum for norm in norms} == {expected}


def test_a_norm_that_averages_all_steps_keeps_doing_so():
    norm = torch.nn.BatchNorm2d(2, momentum=None)
    shorten_memory(norm, 100)
    assert norm.momentum is None
