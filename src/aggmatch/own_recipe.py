"""The recipe of images of your own, chosen by the device, the installed weights, the network and the method."""

from collections.abc import Mapping
from typing import Any

from aggmatch.devices import choose_device
from aggmatch.methods import Method, load_method
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
    "cpu": {"train.steps": 200, "train.batch": 8, "train.evaluate_every": 100},
    "cuda": {"train.steps": 1000, "train.batch": 32},
}
"""What fine-tuning changes of the recipe of photos, by device: it ends in minutes."""


def default_use(device: str, model: Mapping[str, Any], method: str) -> BackboneUse:
    """Return the default use of the backbone of a run on images of your own.

    device: `cpu` or `cuda`. model: what was chosen of section `model`. method: its name. On a CPU, larger networks than
    the default one stay frozen, because a step would take seconds. So they do for methods that do not predict with
    the classifier: fine-tuning could not start with a good one.

    Example: `default_use("cpu", {}, "aggmatch")` is "finetune" if the extra `pretrained` is installed.
    """
    if not has_weights(model):
        return "scratch"
    small = model.get("name", PHOTOS["model.name"]) == PHOTOS["model.name"]
    quick = small and load_method(method).predict is Method.predict
    return "finetune" if device == "cuda" or quick else "frozen"


def recipe_of_use(use: str, device: str) -> dict[str, Any]:
    """Return the recipe of images of your own for a use of the backbone on a kind of device, `cpu` or `cuda`."""
    if use == "scratch":
        return FOLDER | FROM_SCRATCH[device]
    return FOLDER | PHOTOS | ({"train.backbone": use} | FINETUNE[device] if use == "finetune" else {})


def own_recipe(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe of images of your own. chosen: nested settings that the user chose."""
    model, train, runtime, method = (chosen.get(section, {}) for section in ("model", "train", "runtime", "method"))
    device = choose_device(str(runtime.get("device", "auto"))).type
    use = train.get("backbone") or default_use(device, model, str(method.get("name", "aggmatch")))
    return recipe_of_use(use, device)


def has_weights(model: Mapping[str, Any]) -> bool:
    """Whether there are pretrained weights for the network of a run. model: what was chosen of section `model`."""
    name = model.get("name", PHOTOS["model.name"])
    if name == PHOTOS["model.name"] and weights_installed():
        return True
    return model.get("weights") is not None or str(name).startswith(TIMM)
