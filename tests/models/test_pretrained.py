"""Pretrained backbones: EfficientNet-Lite0, files with weights, and networks on a frozen backbone."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from aggmatch.errors import AggMatchError
from aggmatch.models import Network, build_network
from aggmatch.models.efficientnet import EfficientNetLite0
from aggmatch.models.network import Standardize
from aggmatch.models.pretrained import digest_of, freeze, load_pretrained, read_state

IMAGES = torch.randint(0, 256, (3, 3, 40, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def lite0() -> EfficientNetLite0:
    """EfficientNet-Lite0 with its installed weights."""
    backbone = EfficientNetLite0()
    load_pretrained(backbone, "efficientnet-lite0", None)
    return backbone.eval()


class Tiny(nn.Module):
    """A backbone with features of width 4 that wants pixels in [−1, 1]."""

    features, side, pixel_mean, pixel_deviation = 4, 48, 0.5, 0.5

    def __init__(self, channels: int = 3, classes: int = 0) -> None:
        super().__init__()
        self.layer = nn.Conv2d(channels, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).mean((2, 3))


def test_the_installed_weights_fill_every_tensor_in_order(lite0: EfficientNetLite0):
    assert sum(weight.numel() for weight in lite0.parameters()) == 3_371_008
    assert not any(torch.equal(weight, torch.ones_like(weight)) for weight in lite0.parameters())
    assert all((tensor >= 0).all() for name, tensor in lite0.state_dict().items() if "running_var" in name)


def test_the_installed_weights_give_features_of_a_trained_network(lite0: EfficientNetLite0):
    # With tensors in a wrong place, activations of a network of this depth explode or vanish.
    with torch.no_grad():
        features = lite0((IMAGES.float() - 127) / 128)
    assert features.shape == (3, 2368)
    assert features.isfinite().all()
    feature = features[:, -1280:]  # of the last layer, after ReLU6
    assert 0.05 < feature.mean() < 1.5
    assert feature.min() >= 0
    assert feature.max() <= 6


@pytest.mark.parametrize(("side", "stride"), [(9, 2), (10, 2), (7, 1)])
def test_convolutions_pad_as_the_weights_were_trained(side: int, stride: int):
    from aggmatch.models.efficientnet import SameConv2d

    layer = SameConv2d(1, 1, 3, stride, bias=False)
    nn.init.ones_(layer.weight)
    image = torch.arange(side**2, dtype=torch.float32).view(1, 1, side, side)
    output = layer(image)
    assert output.shape[-1] == -(-side // stride)
    extra = (output.shape[-1] - 1) * stride + 3 - side  # the larger half of it is right and below
    padded = torch.nn.functional.pad(image, (extra // 2, extra - extra // 2) * 2)
    expected = torch.nn.functional.avg_pool2d(padded, 3, stride) * 9
    torch.testing.assert_close(output, expected)


def test_fusing_keeps_the_features(lite0: EfficientNetLite0):
    fused = EfficientNetLite0()
    fused.load_state_dict(lite0.state_dict())
    freeze(fused)
    with torch.no_grad():
        torch.testing.assert_close(fused(IMAGES.float() / 255), lite0(IMAGES.float() / 255), rtol=1e-3, atol=1e-3)
    assert not any(weight.requires_grad for weight in fused.parameters())
    again = EfficientNetLite0()
    freeze(again, fused.state_dict())
    assert digest_of(again) == digest_of(fused)


def test_features_say_in_which_quarter_of_the_image_something_is(lite0: EfficientNetLite0):
    image = torch.zeros(1, 3, 128, 128)
    image[..., :64, :64] = IMAGES[:1, :, :64, :64].float() / 128 if IMAGES.shape[-1] >= 64 else torch.rand(3, 64, 64)
    with torch.no_grad():
        here, there = (lite0(view)[0, :768].view(192, 2, 2) for view in (image, image.flip(-1)))
    assert (here[:, 0, 0] - there[:, 0, 1]).abs().mean() < (here[:, 0, 0] - there[:, 0, 0]).abs().mean()


def test_grey_images_are_shown_as_colour(lite0: EfficientNetLite0):
    grey = IMAGES[:, :1].float()
    with torch.no_grad():
        torch.testing.assert_close(lite0(grey), lite0(grey.repeat(1, 3, 1, 1)))


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_a_file_with_weights_is_loaded(tmp_path: Path, suffix: str):
    trained, backbone = Tiny(), Tiny()
    file = tmp_path / f"weights{suffix}"
    save_file(trained.state_dict(), file) if suffix == ".safetensors" else torch.save(trained.state_dict(), file)
    load_pretrained(backbone, "tiny", str(file))
    assert digest_of(backbone) == digest_of(trained)


def test_weights_that_do_not_fit_are_named(tmp_path: Path):
    save_file({"other": torch.zeros(2)}, tmp_path / "weights.safetensors")
    with pytest.raises(AggMatchError, match="weights.safetensors do not fit tiny"):
        load_pretrained(Tiny(), "tiny", str(tmp_path / "weights.safetensors"))


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_reading_weights_executes_no_code(tmp_path: Path):
    torch.save({"weight": Evil(tmp_path / "created")}, tmp_path / "evil.pth")
    with pytest.raises(AggMatchError, match=r"evil\.pth"):
        read_state(tmp_path / "evil.pth")
    assert not (tmp_path / "created").exists()


@pytest.mark.parametrize("content", [b"", b"no weights"])
def test_a_file_without_weights_is_named(tmp_path: Path, content: bytes):
    (tmp_path / "weights.pth").write_bytes(content)
    with pytest.raises(AggMatchError, match=r"weights\.pth"):
        read_state(tmp_path / "weights.pth")


def test_a_backbone_without_weights_says_how_to_get_some():
    with pytest.raises(AggMatchError, match=r"tiny.*model\.weights"):
        load_pretrained(Tiny(), "tiny", None)


def test_missing_weights_of_the_package_say_how_to_get_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("aggmatch.models.efficientnet.find_spec", lambda name: None)
    with pytest.raises(AggMatchError, match=r"aggmatch\[pretrained\]"):
        EfficientNetLite0().installed_weights()


def frozen_network() -> Network:
    torch.manual_seed(0)
    network = Network(Standardize(4), 10, 3, frozen=Tiny(), side=48)
    network.normalize_by(IMAGES)
    return network.eval()


def test_a_network_takes_images_or_their_features():
    network = frozen_network()
    features = network.embed(IMAGES)
    assert features.shape == (3, 4)
    torch.testing.assert_close(network(features).logits, network(IMAGES).logits)


def test_the_frozen_backbone_is_not_part_of_the_weights():
    network = frozen_network()
    assert not [name for name, _ in network.named_parameters() if "frozen" in name]
    assert not [name for name in network.state_dict() if "frozen" in name]
    loss = network.train()(IMAGES).logits.sum()
    loss.backward()
    assert all(weight.grad is None for weight in network.frozen.parameters())  # type: ignore[union-attr]


def test_pixels_are_normalised_and_enlarged_as_the_pretrained_backbone_wants():
    network = frozen_network()
    normalized = network.normalized(IMAGES)
    assert normalized.shape[-1] == 48
    assert normalized.abs().max() <= 1
    assert network.mean.unique().item() == 0.5


def test_a_network_to_finetune_has_the_backbone_among_its_weights():
    network = build_network("efficientnet-lite0", channels=3, classes=10, use="finetune")
    assert network.frozen is None
    assert (network.side, network.features) == (112, 2368)
    assert build_network("efficientnet-lite0", channels=3, classes=10).side == 0


def test_features_are_standardised_by_those_of_the_training_images():
    layer, features = Standardize(2), torch.tensor([[0.0, 5.0], [2.0, 5.0]])
    layer.fit(features)
    torch.testing.assert_close(layer(features), torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
