"""Backbones of timm, by a small package of the same name and by none."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from aggmatch.errors import AggMatchError
from aggmatch.models import build_network
from aggmatch.models.pretrained import load_pretrained


class Body(nn.Module):
    """A network as timm makes it: with facts about its pretrained weights, whose classifier is `fc`."""

    num_features, head_hidden_size = 4, 6
    pretrained_cfg: dict[str, object] = {
        "mean": (0.5,) * 3,
        "std": (0.25,) * 3,
        "input_size": (3, 64, 64),
        "classifier": "fc",
    }

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 6, 3)
        self.fc = nn.Linear(6, classes) if classes else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.body(images).mean((2, 3)))


class Transformer(Body):
    """A network for one size, unless it is asked to take any."""

    pretrained_cfg = Body.pretrained_cfg | {"fixed_input_size": True}

    def __init__(self, classes: int, strict: bool) -> None:
        super().__init__(classes)
        self.strict = strict

    def forward(self, images: Tensor) -> Tensor:
        assert images.shape[-1] == 64 or not self.strict
        return super().forward(images)


def create_model(name: str, pretrained: bool = False, *, num_classes: int = 1000, in_chans: int = 3, **more: bool):
    """As `timm.create_model`, without a connection to its hub."""
    if pretrained:
        raise OSError("We cannot find the file.\nCheck your connection.")
    if set(more) - {"strict_img_size"} or (more and name != "swin"):
        raise TypeError(f"unexpected options {more}")
    return Transformer(num_classes, more.get("strict_img_size", True)) if name == "swin" else Body(num_classes)


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package called timm."""
    package = ModuleType("timm")
    package.create_model = create_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", package)


@pytest.mark.usefixtures("timm")
def test_a_file_of_timm_with_its_classifier_fits_the_backbone(tmp_path: Path):
    whole = Body(1000)
    torch.save(whole.state_dict(), tmp_path / "resnet.pt")
    network = build_network("timm:resnet", channels=3, classes=2, use="finetune")
    load_pretrained(network.backbone, "timm:resnet", str(tmp_path / "resnet.pt"))
    torch.testing.assert_close(network.backbone.state_dict()["body.weight"], whole.body.weight)
    assert (network.side, network.features) == (64, 6), "the width of what it returns, not that of its last layer"


@pytest.mark.usefixtures("timm")
def test_a_transformer_takes_images_of_any_side():
    network = build_network("timm:swin", channels=3, classes=2, use="finetune", side=0)
    assert network(torch.zeros(1, 3, 40, 40, dtype=torch.uint8)).feature.shape == (1, 6)


@pytest.mark.usefixtures("timm")
def test_weights_that_timm_cannot_load_are_an_error_with_the_way_out():
    network = build_network("timm:resnet", channels=3, classes=2, use="frozen")
    assert network.frozen is not None
    with pytest.raises(AggMatchError, match=r"resnet: We cannot find the file\. .*model\.weights"):
        load_pretrained(network.frozen, "timm:resnet", None)


def test_a_missing_timm_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(AggMatchError, match=r"timm:resnet18.*pip install timm"):
        build_network("timm:resnet18", channels=3, classes=2)


def test_a_timm_that_fails_to_import_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "timm.py").write_text('raise RuntimeError("operator torchvision::nms does not exist")')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(AggMatchError, match=r"torchvision::nms does not exist.*pip install timm"):
        build_network("timm:resnet18", channels=3, classes=2)
