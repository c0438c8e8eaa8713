"""Plain modules as backbones: what they may return, and the errors for what they may not."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from aggmatch.errors import AggMatchError
from aggmatch.models import Network, build_network
from aggmatch.models.network import feature_width
from aggmatch.validate import InvalidValue

FILE = Path(__file__)
IMAGES = torch.randint(0, 256, (6, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


class Plain(nn.Module):
    """Returns features of width 5, and logits."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Conv2d(channels, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU())
        self.output = nn.Linear(5, classes)

    def forward(self, x: Tensor) -> object:
        feature = self.layer(x).mean((2, 3))
        return feature, self.output(feature)


class FeatureAlone(Plain):
    def forward(self, x: Tensor) -> object:
        return super().forward(x)[0]  # type: ignore[index]


class Maps(Plain):
    def forward(self, x: Tensor) -> object:
        return self.layer(x)


class WrongLogits(Plain):
    def forward(self, x: Tensor) -> object:
        feature = self.layer(x).mean((2, 3))
        return feature, feature


class ThreeOutputs(Plain):
    def forward(self, x: Tensor) -> object:
        feature = self.layer(x).mean((2, 3))
        return feature, self.output(feature), feature


class NoOutput(Plain):
    def forward(self, x: Tensor) -> object:
        return None


class EmptyTuple(Plain):
    def forward(self, x: Tensor) -> object:
        return ()


class Dictionary(Plain):
    def forward(self, x: Tensor) -> object:
        return {"feature": self.layer(x).mean((2, 3))}


class WrongWidth(FeatureAlone):
    features = 7


class OneSize(nn.Module):
    """Takes only images of 8 × 8 pixels."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(channels * 64, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1))


class OneSizeWithWidth(OneSize):
    features = 9


class OtherArguments(nn.Module):
    def __init__(self) -> None:
        super().__init__()


def no_module(channels: int, classes: int) -> str:
    return "nothing"


def build(name: str) -> Network:
    return build_network(f"{FILE}:{name}", channels=1, classes=3)


@pytest.mark.parametrize(("name", "features"), [("Plain", 5), ("FeatureAlone", 5), ("OneSizeWithWidth", 9)])
def test_a_plain_module_gives_feature_and_logits(name, features):
    network = build(name)
    assert network.features == features
    assert network.training
    output = network(IMAGES)
    assert output.feature.shape == (6, features)
    assert output.logits.shape == (6, 3)
    assert output.logits.dtype == torch.float32


def test_logits_are_those_of_the_module_or_else_of_the_classifier():
    own, classified = build("Plain"), build("FeatureAlone")
    output = own(IMAGES)
    torch.testing.assert_close(output.logits, own.get_submodule("backbone.output")(output.feature))
    output = classified(IMAGES)
    torch.testing.assert_close(output.logits, classified.classifier(output.feature))


@pytest.mark.parametrize("name", ["Plain", "FeatureAlone"])
def test_target_only_images_count_in_batch_norm_but_get_no_gradient(name):
    network, twin = build(name), build(name)
    twin.load_state_dict(network.state_dict())
    outputs = [network(IMAGES, targets=2), twin(IMAGES)]
    for found, expected in zip(*outputs, strict=True):
        torch.testing.assert_close(found, expected)
    (outputs[0].logits.square().sum() + outputs[0].feature.sum()).backward()  # of all images
    (outputs[1].logits[:4].square().sum() + outputs[1].feature[:4].sum()).backward()  # of those that learn
    gradients = [
        {key: p.grad for key, p in module.named_parameters() if p.grad is not None} for module in (network, twin)
    ]
    assert gradients[0].keys() == gradients[1].keys()
    assert gradients[0]["backbone.layer.0.weight"].abs().sum() > 0
    for key, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][key])


@pytest.mark.parametrize(
    "name", ["Maps", "WrongLogits", "ThreeOutputs", "NoOutput", "EmptyTuple", "Dictionary", "OneSize"]
)
def test_a_module_with_a_wrong_output_is_named(name):
    with pytest.raises(AggMatchError, match=f"^{name} "):
        build(name)


def test_the_error_for_a_wrong_shape_says_what_is_needed_and_what_was_returned():
    with pytest.raises(AggMatchError, match=r"\(B, D\).*\(B, 3\), got \(2, 5, 32, 32\)"):
        build("Maps")
    with pytest.raises(AggMatchError, match=r"got \(2, 5\), \(2, 5\)"):
        build("WrongLogits")
    with pytest.raises(AggMatchError, match="got NoneType"):
        build("NoOutput")


def test_a_module_that_needs_another_size_is_asked_for_its_width():
    with pytest.raises(AggMatchError, match="OneSize .*`features`"):
        build("OneSize")


def test_a_wrong_width_is_found_at_the_first_batch():
    network = build("WrongWidth")
    with pytest.raises(AggMatchError, match=r"WrongWidth .*\(B, 7\).*got \(6, 5\)"):
        network(IMAGES)


@pytest.mark.parametrize("name", ["OtherArguments", "no_module"])
def test_code_that_does_not_build_a_module_is_named(name):
    with pytest.raises(AggMatchError, match=f"{FILE.name}:{name}.*channels, classes"):
        build(name)


def test_the_trial_leaves_weights_statistics_and_random_numbers_unchanged():
    torch.manual_seed(0)
    plain = Plain(1, 3)
    state, generator = {key: value.clone() for key, value in plain.state_dict().items()}, torch.get_rng_state()
    assert feature_width(plain, 1, 3) == 5
    assert all(torch.equal(value, plain.state_dict()[key]) for key, value in state.items())
    assert torch.equal(generator, torch.get_rng_state())
    assert plain.training


@pytest.mark.parametrize("name", ["wrn-9999994-2", "wrn-28-99999999999999999", "small-100000"])
def test_a_network_that_could_never_be_built_is_refused_at_once(name):
    with pytest.raises(InvalidValue, match=r"model\.name must have numbers of at most 1000"):
        build_network(name, channels=3, classes=10)
