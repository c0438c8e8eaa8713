"""The recipe of images of your own, chosen by the device, the installed weights and the size of the images."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aggmatch.data.own.sides import typical_side
from aggmatch.devices import choose_device
from aggmatch.models.from_timm import TIMM
from aggmatch.models.pretrained import BackboneUse, weights_installed
from aggmatch.recipes import FOLDER, FROM_SCRATCH, PHOTOS

SMALL = 64
"""Side in pixels up to which images are learned on frozen features on a GPU too: enlarged, they have no detail that
fine-tuning could find."""
FINETUNE: dict[str, dict[str, Any]] = {
    "cpu": {"train.steps": 200, "train.batch": 8},
    "cuda": {"train.steps": 2000, "train.batch": 32},
}
"""What fine-tuning changes of the recipe of photos, by device: it ends in minutes."""


def default_use(device: str, *, weights: bool, side: int | None) -> BackboneUse:
    """Return the default use of the backbone of a run on images of your own.

    device: `cpu` or `cuda`. weights: whether there are pretrained weights. side: of a typical image, in pixels; None if
    it is not known.

    Example: `default_use("cuda", weights=True, side=400)` is "finetune".
    """
    if not weights:
        return "scratch"
    return "finetune" if device == "cuda" and side is not None and side > SMALL else "frozen"


def recipe_of_use(use: str, device: str) -> dict[str, Any]:
    """Return the recipe of images of your own for a use of the backbone on a kind of device, `cpu` or `cuda`."""
    if use == "scratch":
        return FOLDER | FROM_SCRATCH[device]
    return FOLDER | PHOTOS | ({"train.backbone": use} | FINETUNE[device] if use == "finetune" else {})


def own_recipe(data: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe of images of your own. data: their path. chosen: nested settings that the user chose."""
    model, train, runtime = (chosen.get(section, {}) for section in ("model", "train", "runtime"))
    device = choose_device(str(runtime.get("device", "auto"))).type
    use = train.get("backbone")
    if use is None:
        side = typical_side(Path(data)) if device == "cuda" else None  # a CPU does not need it
        use = default_use(device, weights=has_weights(model), side=side)
    return recipe_of_use(use, device)


def has_weights(model: Mapping[str, Any]) -> bool:
    """Whether there are pretrained weights for the network of a run. model: what was chosen of section `model`."""
    name = model.get("name", PHOTOS["model.name"])
    if name == PHOTOS["model.name"] and weights_installed():
        return True
    return model.get("weights") is not None or str(name).startswith(TIMM)
