"""Networks by name: `wrn-28-2`, `small-16`, your own backbone, or one from an installed package."""

from aggmatch.models.network import (
    Network,
    Output,
    frozen_statistics,
    images_at_once,
    parameter_count,
    shorten_memory,
)
from aggmatch.models.registry import MODELS, ModelSettings, build_network

__all__ = [
    "MODELS",
    "ModelSettings",
    "Network",
    "Output",
    "build_network",
    "frozen_statistics",
    "images_at_once",
    "parameter_count",
    "shorten_memory",
]
