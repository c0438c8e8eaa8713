"""The recipe of images of your own, chosen by the device and the installed weights."""

from collections.abc import Mapping
from typing import Any

from aggmatch.devices import choose_device
from aggmatch.models.from_timm import TIMM
from aggmatch.models.pretrained import BackboneUse, weights_installed

FOLDER: dict[str, Any] = {"data.labels": None}
"""Recipe of images of your own: all their labels."""
PHOTOS: dict[str, Any] = {"model.name": "efficientnet-lite0", "train.backbone": "frozen", "data.side": 128}
"""Recipe of images of your own if pretrained weights are installed and no network is chosen."""
FROM_SCRATCH: dict[str, dict[str, Any]] = {
    "cpu": {"model.name": "small-32", "train.steps": 2000, "train.batch": 16, "optim.average": 0.99},
    "cuda": {"model.name": "wrn-28-2", "train.steps": 20_000, "train.batchnorm_memory": 0.01},
}
"""Recipe of images of your own without pretrained weights, by device: it ends in minutes."""
FINETUNE: dict[str, dict[str, Any]] = {
    "cpu": {"train.steps": 200, "train.batch": 8},
    "cuda": {"train.steps": 1000, "train.batch": 32},
}
"""What fine-tuning changes of the recipe of photos, by device: it ends in minutes."""


def default_use(device: str, *, weights: bool) -> BackboneUse:
    """Return the default use of the backbone of a run on images of your own.

    device: `cpu` or `cuda`. weights: whether there are pretrained weights.

    Example: `default_use("cuda", weights=True)` is "finetune".
    """
    if not weights:
        return "scratch"
    return "finetune" if device == "cuda" else "frozen"


def recipe_of_use(use: str, device: str) -> dict[str, Any]:
    """Return the recipe of images of your own for a use of the backbone on a kind of device, `cpu` or `cuda`."""
    if use == "scratch":
        return FOLDER | FROM_SCRATCH[device]
    return FOLDER | PHOTOS | ({"train.backbone": use} | FINETUNE[device] if use == "finetune" else {})


def own_recipe(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe of images of your own. chosen: nested settings that the user chose."""
    model, train, runtime = (chosen.get(section, {}) for section in ("model", "train", "runtime"))
    device = choose_device(str(runtime.get("device", "auto"))).type
    return recipe_of_use(train.get("backbone") or default_use(device, weights=has_weights(model)), device)


def has_weights(model: Mapping[str, Any]) -> bool:
    """Whether there are pretrained weights for the network of a run. model: what was chosen of section `model`."""
    name = model.get("name", PHOTOS["model.name"])
    if name == PHOTOS["model.name"] and weights_installed():
        return True
    return model.get("weights") is not None or str(name).startswith(TIMM)
