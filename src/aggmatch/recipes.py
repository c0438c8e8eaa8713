"""Recipes: default settings of data sets and methods, mostly those of the papers.

A recipe is a table of dotted settings. The recipe of the data set comes first, then that of the method on it, then the
named recipe (`--recipe`); a configuration file and `--set` override all of them. Settings that are not listed here have
the default of their field. `aggmatch list recipes` shows the named recipes side by side.
"""

from itertools import product
from typing import Any

# Data sets ------------------------------------------------------------------------------------------------------------

# Digits: chosen by accuracy on the unlabelled training images of folds 10 and above, never on test images. The common
# recipe is the best of about fifty variants. Settings of AggMatch come from 250 runs that vary sixteen settings, the
# weight decays of AggMatch and FixMatch from six and four values, the warm-up of FeatMatch, the colours of PAWS and its
# schedule from two each. 1,000 steps need more weight decay than a million; for five other methods more was worse.
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

# Methods on a data set ------------------------------------------------------------------------------------------------

OWN = "own images"
"""Images of your own in the tables. They are few: a queue of 2,048 slots per class would only cost time."""

RELATIVES = ("fixmatch_da", "shrinkmatch", "flexmatch", "freematch", "softmatch")
"""Methods that have the same start as AggMatch and FixMatch, and are otherwise as in their papers."""
FIXMATCH_ON_DIGITS: dict[str, Any] = {"optim.weight_decay": 0.04, "optim.average": 0.98}
"""Methods that build on FixMatch have its values, without a search of their own."""

METHOD: dict[tuple[str, str], dict[str, Any]] = {
    **dict.fromkeys(product(["digits"], ["fixmatch", *RELATIVES, "comatch", "simmatch"]), FIXMATCH_ON_DIGITS),
    ("digits", "aggmatch"): {
        "method.slots": 64,
        "method.subsets": 8,
        "method.disjoint": "images",
        "method.class_weight": 0.1,
        "method.sharpening": 1.0,
        "optim.weight_decay": 0.08,
        "optim.average": 0.98,
    },
    ("digits", "featmatch"): {
        "method.warmup": 100,
        "method.refresh_every": 25,
        "method.strong_views": 2,
        "method.recorded": 1500,
    },
    ("digits", "paws"): {
        "method.support": None,
        "train.batch": 50,
        "views.crops.solarized": 0.0,
        "views.crops.hue": 0.0,
        "optim.final": None,
        "optim.warmup": 0.0,
        "optim.warmup_from": 0.0,
        "optim.nesterov": True,
    },
    (OWN, "aggmatch"): {"method.slots": 64, "method.subsets": 8, "method.disjoint": "images"},
    ("svhn", "freematch"): {
        "method.warmup": 2048,
        "method.lowest_threshold": 0.9,
        "method.highest_threshold": 0.95,
    },
    ("svhn", "shrinkmatch"): {"method.alignment": "none", "method.targets": "hard"},
    ("stl10", "shrinkmatch"): {"method.targets": "hard"},
    ("stl10", "comatch"): {"method.contrast_weight": 5.0},
    ("svhn", "mixmatch"): {"method.unlabeled_weight": 250.0},
    ("cifar100", "mixmatch"): {"method.unlabeled_weight": 150.0},
    ("cifar100", "aggmatch"): {"method.slots": 256},
}

# Named recipes --------------------------------------------------------------------------------------------------------

ANY = ""
"""Stands for all methods, or all data sets, in the tables below."""

COLD_START: dict[str, Any] = {
    "method.labeled_views": "both",
    "method.rotation_weight": 2.0,
    "method.rotated": 448,
    "method.rotation_steps": 10_000,
    "method.warmup": 1500,
    "optim.lr": 0.06,
    "optim.final": 0.0,
    "optim.weight_decay": 1e-3,
    "train.batchnorm_memory": 0.01,
}
"""First steps that work with four labels per class, as far as they were measured: see results/cold-start/README.md."""

NEIGHBOURS: dict[str, Any] = {
    "method.labeled_views": "both",
    "method.contrast_steps": 20_000,
    "method.propagation_steps": 16_000,
    "method.neighbours": 20,
    "views.crops.large_area": [0.2, 1.0],
    "views.crops.hue": 0.1,
    "views.crops.grey": 0.2,
    "views.crops.solarized": 0.0,
    "views.crops.equalized": 0.0,
    "optim.lr": 0.06,
    "optim.final": 0.0,
    "optim.weight_decay": 1e-3,
    "train.batchnorm_memory": 0.01,
}
"""A longer start: contrast, then propagated labels; see results/cold-start/README.md, sixth and seventh part."""

ALIGNED: dict[str, Any] = {"method.alignment": "uniform", "method.targets": "soft"}
"""What makes FixMatch the method `fixmatch_da`."""
SMALL_QUEUE: dict[str, Any] = {
    "method.alignment": True,
    "method.alignment_steps": 2000,
    "method.slots": 64,
    "method.subsets": 16,
    "method.disjoint": "images",
    "method.labeled_slots": "one_hot",
    "method.class_weight": 0.1,
    "method.confidence": "product",
}
"""AggMatch after the start of `cold-start`."""
SURE_ONLY: dict[str, Any] = {
    "method.alignment": True,
    "method.labeled_slots": "one_hot",
    "method.class_weight": 0.1,
    "method.sharpening": 1.0,
    "method.sure_only": True,
    "method.shrinking_weight": 1.0,
}
"""AggMatch after propagated labels, with the paper's queue: sure images count, unsure ones teach what they are not."""

FROZEN: dict[str, Any] = {
    "train.backbone": "frozen",
    "train.steps": 600,
    "train.batch": 32,
    "train.log_every": 20,
    "train.evaluate_every": 30,
    "optim.average": 0.99,
    "runtime.checkpoint_every": 200,
}
"""Training on features of a frozen backbone, with any method."""

FINETUNED: dict[str, Any] = {
    "train.backbone": "finetune",
    "train.linear_start": True,
    "train.batchnorm": "fixed",
    "optim.lr": 0.003,
    "optim.backbone_rate": 0.3,
    "optim.average": 0.99,
    "runtime.checkpoint_every": 200,
}
"""Training of all layers of a pretrained backbone, with any method; see docs/decisions/0010-fine-tuning.md."""

ON_PRETRAINED: dict[str, dict[str, Any]] = {
    "aggmatch": {
        "method.alignment": True,
        "method.slots": 64,
        "method.subsets": 8,
        "method.disjoint": "images",
        "method.class_weight": 0.1,
        "method.labeled_slots": "one_hot",
        "method.labeled_views": "both",
        "method.confidence": "product",
    },
    "fixmatch": ALIGNED | {"method.threshold": 0.8},
    "fixmatch_da": {"method.threshold": 0.8},
    "shrinkmatch": {"method.threshold": 0.8},
}
"""Methods on a pretrained backbone, measured on frozen ones: predictions are right early, classes may be lost."""

NAMED: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {},
    "cold-start": {"aggmatch": COLD_START | SMALL_QUEUE, "fixmatch": COLD_START | ALIGNED}
    | dict.fromkeys(RELATIVES, COLD_START),
    "neighbours": {"aggmatch": NEIGHBOURS | SURE_ONLY, "fixmatch": NEIGHBOURS | ALIGNED}
    | dict.fromkeys(RELATIVES, NEIGHBOURS),
    "frozen": {ANY: FROZEN} | ON_PRETRAINED,
    "finetune": {ANY: FINETUNED} | ON_PRETRAINED,
}
"""Named recipes: name → method → settings; `ANY` holds settings of all methods."""

# Named recipes on a data set ------------------------------------------------------------------------------------------

COLD_START_ON_DIGITS: dict[str, Any] = {
    "method.rotation_weight": 0.5,
    "method.rotated": 60,
    "method.rotation_steps": 0,
    "method.warmup": 100,
    "optim.lr": 0.03,
    "optim.final": None,
    "train.batchnorm_memory": None,
}
NEIGHBOURS_ON_DIGITS: dict[str, Any] = {
    "method.propagated_by_class": 0.5,
    "optim.lr": 0.03,
    "optim.weight_decay": 0.02,
}
NAMED_ON: dict[str, dict[str, dict[str, dict[str, Any]]]] = {
    "digits": {
        "cold-start": {
            "aggmatch": COLD_START_ON_DIGITS
            | {"method.alignment_steps": 0, "method.sharpening": 0.1, "optim.weight_decay": 0.08},
            **dict.fromkeys(("fixmatch", *RELATIVES), COLD_START_ON_DIGITS | {"optim.weight_decay": 0.04}),
        },
        "neighbours": {
            "aggmatch": NEIGHBOURS_ON_DIGITS
            | SMALL_QUEUE
            | {
                "method.alignment_steps": 0,
                "method.sharpening": 0.1,
                "method.sure_only": False,
                "method.shrinking_weight": 0.0,
            },
            **dict.fromkeys(("fixmatch", *RELATIVES), NEIGHBOURS_ON_DIGITS),
        },
    },
}
"""What named recipes change on a data set: data set → name → method → settings. Digits train for 1,000 steps."""

# Which named recipe a run has, and how much of the run it may take ----------------------------------------------------

PREFERRED: dict[tuple[str, str], dict[int, str]] = {
    (ANY, "aggmatch"): {0: "cold-start"},
    ("digits", "aggmatch"): {0: "neighbours"},
    ("cifar10", "aggmatch"): {0: "cold-start", 50_000: "neighbours"},
}
"""The default recipe of a method on a data set, or on `ANY` data set with a name, where it is not `paper`: least number
of steps → name. A long start pays in a long run, as far as it was measured. Images of your own, trained from scratch,
have `paper`: they may have no up direction, which the rotation task of `cold-start` needs. Runs with a pretrained
backbone have the recipe that is named like its use, `frozen` or `finetune`."""
SHARES = {
    "method.warmup": 4,
    "method.alignment_steps": 3,
    "method.rotation_steps": 2,
    "method.contrast_steps": 3,
    "method.propagation_steps": 3,
}
"""A recipe spends at most 1 / N of the steps on each part of its start, so that it also fits short runs."""
