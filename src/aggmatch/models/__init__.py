"""Networks by name: `small`, `small-16` (its width), `wrn-28-2` (depth and width)."""

import re
from dataclasses import dataclass

from torch import nn

from aggmatch.config import ConfigError, Settings
from aggmatch.models.network import Network, Output, frozen_statistics, images_at_once, parameter_count
from aggmatch.models.small import SmallNet
from aggmatch.models.wide_resnet import WideResNet

__all__ = [
    "ModelSettings",
    "Network",
    "Output",
    "build_network",
    "frozen_statistics",
    "images_at_once",
    "parameter_count",
]

FORMS = "small, small-WIDTH, or wrn-DEPTH-WIDTH with a depth of 10, 16, 22, 28, ..."


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """Section `model`."""

    name: str = "wrn-28-2"
    """Network: `wrn-DEPTH-WIDTH` (wide residual network) or `small-WIDTH` (six convolutions, for tiny images)."""


def build_network(name: str, *, channels: int, classes: int) -> Network:
    """A freshly initialised network; draws its weights from torch's global generator."""
    backbone: nn.Module
    if match := re.fullmatch(r"wrn-(\d+)-(\d+)", name):
        depth, width = int(match[1]), int(match[2])
        if depth < 10 or (depth - 4) % 6 or width < 1:
            raise ConfigError("model.name", f"must be {FORMS}, got '{name}'")
        backbone = WideResNet(depth, width, channels)
    elif (match := re.fullmatch(r"small(?:-(\d+))?", name)) and match[1] != "0":
        backbone = SmallNet(channels, int(match[1] or 32))
    else:
        raise ConfigError("model.name", f"must be {FORMS}, got '{name}'")
    return Network(backbone, int(backbone.features), classes, channels)
