"""Methods by name: built-in (one module or package here each), from a file, or from an installed package."""

import pkgutil
from functools import cache
from typing import Any

from aggmatch.config import Settings
from aggmatch.methods.base import (
    Batch,
    Method,
    Problem,
    StepResult,
    TrainingImages,
    TrainingSet,
    Views,
    forward_together,
)
from aggmatch.models import ModelSettings, Network, build_network
from aggmatch.models.pretrained import BackboneUse
from aggmatch.registry import Registry

__all__ = [
    "METHODS",
    "Batch",
    "Method",
    "Problem",
    "StepResult",
    "TrainingImages",
    "TrainingSet",
    "Views",
    "build_modules",
    "forward_together",
    "load_method",
]

SHARED = ("base", "alignment", "shrinking", "start")
"""Modules that several methods use."""


@cache
def builtin_methods() -> dict[str, str]:
    """Return name → `module:METHOD` for each module here but those that several methods share."""
    names = (module.name for module in pkgutil.iter_modules(__path__) if module.name not in SHARED)
    return {name: f"{__name__}.{name}:METHOD" for name in names}


METHODS: Registry[type[Method[Any]]] = Registry(
    "method",
    "methods",
    builtin=builtin_methods,
    accepts=lambda part: isinstance(part, type) and issubclass(part, Method),
    wanted="a subclass of aggmatch.Method",
)
"""All methods that have a name."""


def build_modules(
    model: ModelSettings,
    use: BackboneUse,
    method: str,
    config: Settings,
    *,
    channels: int,
    classes: int,
    labels: int,
    images: int,
    mixed: bool = False,
    **known: Any,
) -> tuple[Method[Any], Network]:
    """Return a method and its network with new random weights, drawn from torch's global generator.

    This is the only place that builds them. model: section `model` of the settings. use: of the backbone, as in
    `train.backbone`. method: name, as in `method.name`. config: section `method` of the settings. channels: C of the
    images. classes: Y. labels: number of labelled images. images: number of training images, the labelled ones
    included. mixed: whether the network computes in bfloat16. known: further fields of `Problem`.
    """
    network = build_network(model.name, channels=channels, classes=classes, use=use, side=model.side)
    network.mixed = mixed
    problem = Problem(classes=classes, features=network.features, labels=labels, images=images, mixed=mixed, **known)
    built = load_method(method)(config, problem)
    network.head = built.build_head()
    return built, network


def load_method(name: str) -> type[Method[Any]]:
    """Return the class of a method.

    name: `fixmatch`, or another of `aggmatch list methods`; `path/to/file.py:Name`; or `module:Name`.

    Example: `load_method("fixmatch").reference`.
    """
    return METHODS.load(name)
