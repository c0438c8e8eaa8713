"""From the name of a network to the network."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn

from aggmatch.config import Range, Settings
from aggmatch.errors import AggMatchError
from aggmatch.models.from_timm import TIMM, timm_builder
from aggmatch.models.network import Network, Standardize, feature_width
from aggmatch.models.pretrained import BackboneUse, freeze, load_pretrained
from aggmatch.registry import Registry, is_code
from aggmatch.validate import InvalidValue

FAMILIES = {
    "small": "small or small-WIDTH",
    "wrn": "wrn-DEPTH-WIDTH with a depth of 10, 16, 22, 28, ..., or 37 for images of 96 pixels",
}
"""Built-in families of networks → the form of their names. Their classes take the channels, then these numbers."""

LARGEST = 1000
"""Largest depth or width: a network with a million layers is never built to its end."""

MODELS: Registry[type[nn.Module]] = Registry(
    "network",
    "models",
    builtin=lambda: {
        "small": "aggmatch.models.small:SmallNet",
        "wrn": "aggmatch.models.wide_resnet:WideResNet",
        "efficientnet-lite0": "aggmatch.models.efficientnet:EfficientNetLite0",
    },
    accepts=callable,
    wanted="a class or function that takes (channels, classes) and returns a torch.nn.Module",
)
"""All backbones that have a name."""


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """Section `model`."""

    name: str = "wrn-28-2"
    """Network: `wrn-DEPTH-WIDTH` (wide residual network), `small-WIDTH` (six convolutions, for tiny images),
    `efficientnet-lite0` (pretrained, for photos), `timm:NAME`, one of an installed package, or your own as
    `path/to/file.py:Name`."""
    weights: str | None = None
    """File with pretrained weights of the network, for train.backbone=finetune or frozen; null for those that are
    installed with it."""
    side: Annotated[int, Range(0, 1024)] | None = None
    """Smaller images are enlarged to this side in pixels. null: to the side that a pretrained network needs. 0: never.
    """


def build_network(
    name: str, *, channels: int, classes: int, use: BackboneUse = "scratch", side: int | None = None
) -> Network:
    """Return a network with new random weights, drawn from torch's global generator.

    name: see `ModelSettings.name`. channels: of the images, 1 or 3. classes: Y, number of logits. use: how the backbone
    is used; a frozen one is put in front of the network. side: see `ModelSettings.side`. Pretrained weights are loaded
    by `load_pretrained`.

    Example: `build_network("wrn-28-2", channels=3, classes=10).features` is 128.
    """
    backbone = build_backbone(name, channels, classes)
    if side is None:
        side = 0 if use == "scratch" else int(getattr(backbone, "side", 0))
    if use != "frozen":
        return Network(backbone, classes, channels, side=side)
    features = feature_width(backbone, channels, classes, max(side, 32))
    return Network(Standardize(features), classes, channels, frozen=backbone, side=side)


def load_backbone(
    network: Network, use: BackboneUse, model: ModelSettings, stored: Mapping[str, Tensor] | None = None
) -> None:
    """Load the pretrained weights that a use of the backbone needs, and freeze it if it is frozen.

    stored: weights of a frozen backbone, as a run stored them, in place of the pretrained ones.
    """
    if stored is None and use != "scratch":
        load_pretrained(network.frozen or network.backbone, model.name, model.weights)
    if network.frozen is not None:
        freeze(network.frozen, stored)


def pretrained_network(model: ModelSettings, pixels: Tensor, *, classes: int, mixed: bool) -> Network:
    """Return a network that computes features of images like these, (N, C, H, W), by a frozen pretrained backbone.

    classes: Y, which a backbone of your own may depend on. mixed: whether it computes in bfloat16.
    """
    network = build_network(model.name, channels=pixels.shape[1], classes=classes, use="frozen", side=model.side)
    load_backbone(network, "frozen", model)
    network.normalize_by(pixels)
    network.mixed = mixed
    return network


def build_backbone(name: str, channels: int, classes: int) -> nn.Module:
    """Return a backbone with random weights, or with pretrained ones if it loads them itself."""
    family, *numbers = name.split("-")
    if family in FAMILIES and not is_code(name) and name not in MODELS.announced():
        if any(number.isdecimal() and int(number[:9]) > LARGEST for number in numbers):
            raise InvalidValue("model.name", f"must have numbers of at most {LARGEST}, got '{name}'")
        try:
            return MODELS.load(family)(channels, *map(int, numbers))
        except (ValueError, TypeError):
            raise InvalidValue("model.name", f"must be {FAMILIES[family]}, got '{name}'") from None
    build = timm_builder(name.removeprefix(TIMM)) if name.startswith(TIMM) else MODELS.load(name)
    try:
        backbone = build(channels, classes)
    except (Exception, SystemExit) as error:  # whatever the class raises
        raise AggMatchError(f"Cannot build network '{name}': {error}. It must be {MODELS.wanted}.") from error
    if not isinstance(backbone, nn.Module):
        raise AggMatchError(f"Cannot use network '{name}': it returned {backbone!r:.80}. It must be {MODELS.wanted}.")
    return backbone
