"""A folder of tiny images, and a project that was trained on some of them."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from aggmatch.page.project import Project
from aggmatch.storage.annotations import Annotations, label_events

BACKBONE = f"{Path(__file__).parents[1] / 'training/frozen_backbone.py'}:Bands"
TINY: dict[str, Any] = {
    "model.name": BACKBONE,
    "train.backbone": "frozen",
    "data.side": 8,
    "views.cached": 2,
    "views.shift": 0.0,
    "views.ops": ["identity", "brightness"],
    "train.steps": 60,
    "train.batch": 6,
    "train.unlabeled_ratio": 2,
    "train.log_every": 10,
    "optim.average": 0.9,
    "method.slots": 16,
    "method.subsets": 4,
}
CHANGES: list[tuple[str, dict[str, Any]]] = [("the test", TINY)]
COUNT = 30
ODD = "<img src=x onerror=alert(1)>"


def true_class(number: int) -> str:
    """The class of a tiny image: where it is bright."""
    return "top" if number % 2 else "left"


def write_images(folder: Path, count: int = COUNT) -> Path:
    """Write tiny images, bright at the top or at the left."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for number in range(count):
        pixels = generator.integers(0, 90, (8, 8, 3), dtype=np.uint8)
        part = np.s_[:2] if true_class(number) == "top" else np.s_[:, :2]
        pixels[part] += 150
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_images(tmp_path / "photos")


@pytest.fixture
def project(photos: Path, tmp_path: Path) -> Project:
    return Project(photos, tmp_path / "out", changes=CHANGES)


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory) -> Path:
    """A folder with `photos`, labels of twelve of them, one of which is wrong, and `out` with one finished round."""
    from aggmatch.page.worker import main

    place: Path = tmp_path_factory.mktemp("trained")
    photos, folder = write_images(place / "photos"), place / "out" / "0001"
    notes = Annotations(photos / "labels.jsonl")
    for event in label_events({f"{k:02d}.png": true_class(k) for k in range(12)}):
        notes.add(event)
    notes.add({"event": "label", "files": ["03.png"], "class": "left"})
    folder.mkdir(parents=True)
    shutil.copy(notes.path, folder / "labels.jsonl")
    job = {"kind": "train", "round": str(folder), "folder": str(photos), "images": COUNT, "changes": CHANGES}
    (folder / "job.json").write_text(json.dumps(job | {"history": str(place / "out" / "history.jsonl")}))
    main(folder / "job.json")
    return place


@pytest.fixture
def trained(trained_once: Path, tmp_path: Path) -> Project:
    """The trained project, copied: the test may change it."""
    shutil.copytree(trained_once, tmp_path / "trained")
    return Project(tmp_path / "trained" / "photos", tmp_path / "trained" / "out", changes=CHANGES)
