"""How a folder of images is learned if nobody says it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from aggmatch.config import Layer
from aggmatch.own_recipe import default_use, own_recipe, recipe_of_use
from aggmatch.settings import resolve, resolve_quick

CPU = {"runtime.device": "cpu"}


@pytest.mark.parametrize(
    ("device", "model", "method", "expected"),
    [
        ("cpu", {}, "aggmatch", "finetune"),
        ("cpu", {"name": "timm:resnet18"}, "aggmatch", "frozen"),
        ("cpu", {}, "paws", "frozen"),
        ("cpu", {"name": "wrn-28-2"}, "aggmatch", "scratch"),
        ("cuda", {}, "paws", "finetune"),
        ("cuda", {"name": "timm:resnet18"}, "aggmatch", "finetune"),
        ("cuda", {"name": "wrn-28-2"}, "aggmatch", "scratch"),
    ],
)
def test_the_use_of_the_backbone_follows_from_device_network_and_method(device, model, method, expected):
    assert default_use(device, model, method) == expected


def test_without_weights_a_network_is_trained_from_scratch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("aggmatch.own_recipe.weights_installed", lambda: False)
    assert {default_use(device, {}, "aggmatch") for device in ("cpu", "cuda")} == {"scratch"}


def test_many_short_runs_are_on_frozen_features_unless_somebody_chooses(tmp_path: Path):
    folder = Layer("a test", {"data.name": str(tmp_path)} | CPU)
    assert resolve([folder]).train.backbone == "finetune"
    assert resolve_quick([folder]).train.backbone == "frozen"
    assert resolve_quick([folder, Layer("a person", {"train.backbone": "finetune"})]).train.backbone == "finetune"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_fine_tuning_ends_in_minutes(device: str):
    recipe = recipe_of_use("finetune", device)
    assert (recipe["train.backbone"], recipe["model.name"]) == ("finetune", "efficientnet-lite0")
    assert recipe["train.steps"] * recipe["train.batch"] <= 64_000


def test_a_gpu_fine_tunes_by_statistics_that_came_with_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("aggmatch.own_recipe.choose_device", lambda _: torch.device("cuda"))
    assert own_recipe({})["train.backbone"] == "finetune"
    chosen = resolve({"data.name": str(tmp_path)})
    assert (chosen.recipe, chosen.train.backbone, chosen.train.batchnorm) == ("finetune", "finetune", "fixed")


def test_a_folder_of_images_is_fine_tuned_on_a_cpu_too_if_weights_are_installed(tmp_path: Path):
    chosen = resolve({"data.name": str(tmp_path)} | CPU)
    assert (chosen.model.name, chosen.train.backbone, chosen.recipe) == ("efficientnet-lite0", "finetune", "finetune")
    assert chosen.train.steps * chosen.train.batch <= 1600, "it takes minutes"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model.name": "efficientnet-lite0"}, "finetune"),
        ({"train.backbone": "frozen"}, "frozen"),
        ({"method.name": "paws"}, "frozen"),
        ({"model.name": "timm:resnet18"}, "frozen"),
        ({"model.name": "wrn-28-2", "model.weights": "wrn.safetensors"}, "frozen"),
        ({"model.name": "wrn-28-2"}, "scratch"),
        ({"train.backbone": "scratch"}, "scratch"),
        ({"train.backbone": "finetune"}, "finetune"),
    ],
)
def test_a_chosen_network_is_used_as_its_weights_allow(tmp_path: Path, changes: dict[str, Any], expected: str):
    chosen = resolve({"data.name": str(tmp_path)} | CPU | changes)
    assert chosen.train.backbone == expected
    assert chosen.data.side == (32 if expected == "scratch" else 128)
    assert chosen.train.steps <= 2000, "it ends in minutes"


def test_without_weights_a_folder_is_learned_from_scratch_in_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("aggmatch.own_recipe.weights_installed", lambda: False)
    chosen = resolve({"data.name": str(tmp_path)} | CPU)
    assert (chosen.model.name, chosen.train.backbone, chosen.train.steps) == ("small-32", "scratch", 2000)
