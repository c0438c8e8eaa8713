"""Defaults of data sets and methods: what the papers use, as data.

A recipe is a table of dotted settings. That of a data set comes first, that of a method on it second; a configuration
file and `--set` override both. Everything not named here has the default of its field.
"""

from typing import Any

from aggmatch.config import Layer
from aggmatch.data import is_folder
from aggmatch.methods import load_method

# Digits: chosen by accuracy on the unlabelled training images of folds 10 and up, never on test images: the common
# recipe out of some fifty variants, AggMatch's by the effects of sixteen settings over 250 runs, the weight decay of
# AggMatch and FixMatch out of six and four values, FeatMatch's warm-up and PAWS's colours out of two each. A thousand
# steps bear more weight decay than a million; five other methods were tried with it and lost.
GEOMETRIC = ["identity", "rotate", "shear_x", "shear_y", "translate_x", "translate_y"]

DATA: dict[str, dict[str, Any]] = {
    "digits": {
        "data.labels": 10,
        "model.name": "small-16",
        "views.shift": 0.125,
        "views.ops": GEOMETRIC,
        "views.rounds": 1,
        "views.interpolation": "bilinear",
        "views.cutout": 0.25,
        "optim.average": 0.99,
        "train.steps": 1000,
        "train.batch": 30,
        "train.log_every": 20,
        "train.evaluate_every": 100,
        "runtime.checkpoint_every": 250,
    },
    "cifar10": {"data.labels": 40, "model.name": "wrn-28-2"},
    "cifar100": {"data.labels": 400, "model.name": "wrn-28-8", "optim.weight_decay": 1e-3, "train.batch": 48},
    "svhn": {"data.labels": 40, "model.name": "wrn-28-2"},
    "mnist": {"data.labels": 40, "model.name": "wrn-28-2"},
    "fashion-mnist": {"data.labels": 40, "model.name": "wrn-28-2"},
    "stl10": {"data.labels": 40, "model.name": "wrn-37-2"},
}

FOLDER: dict[str, Any] = {"data.labels": None, "model.name": "wrn-28-2", "train.steps": 20_000}
"""Of a folder of images: every label that is given, and a number of steps that a GPU takes in minutes."""

METHOD: dict[tuple[str, str], dict[str, Any]] = {
    ("digits", "aggmatch"): {
        "method.slots": 64,
        "method.subsets": 8,
        "method.disjoint": "images",
        "method.class_weight": 0.1,
        "method.sharpening": 1.0,
        "optim.weight_decay": 0.08,
        "optim.average": 0.98,
    },
    ("digits", "fixmatch"): {"optim.weight_decay": 0.04, "optim.average": 0.98},
    ("digits", "featmatch"): {
        "method.warmup": 100,
        "method.refresh_every": 25,
        "method.strong_views": 2,
        "method.recorded": 1500,
    },
    ("digits", "paws"): {"train.batch": 50, "views.crops.solarized": 0.0},
    ("svhn", "mixmatch"): {"method.unlabeled_weight": 250.0},
    ("cifar100", "mixmatch"): {"method.unlabeled_weight": 150.0},
    ("cifar100", "aggmatch"): {"method.slots": 256},
}


def recipe(data: str, method: str) -> list[Layer]:
    """Layers of defaults for a method on a data set."""
    return [
        Layer(f"the recipe of {data}", FOLDER if is_folder(data) else DATA.get(data, {})),
        Layer(f"the defaults of {method}", load_method(method).defaults),
        Layer(f"the recipe of {method} on {data}", METHOD.get((data, method), {})),
    ]
