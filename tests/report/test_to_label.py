"""What to label next, in the report on a run with images of your own."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from aggmatch.report.page import page
from aggmatch.report.to_label import find_to_label
from aggmatch.runs.stored import StoredRun, read_run
from aggmatch.settings import resolve
from aggmatch.training.begin import start

QUICK = {"method.name": "supervised", "model.name": "small-4", "data.side": 8, "train.batch": 4, "train.steps": 2}


@pytest.fixture
def run(tmp_path: Path) -> StoredRun:
    """A run on four labelled images and three others."""
    for number, name in enumerate(["a", "b", "a", "b", "unlabeled", "unlabeled", "unlabeled"]):
        file = tmp_path / "photos" / name / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        noise = torch.randint(256, (9, 9, 3), generator=torch.Generator().manual_seed(number), dtype=torch.uint8)
        Image.fromarray(noise.numpy()).save(file)
    trained = start(resolve(QUICK | {"data.name": str(tmp_path / "photos")}), tmp_path / "run")
    list(trained.train())
    return read_run(tmp_path / "run")


def test_the_report_lists_images_without_a_label(run: StoredRun):
    found = find_to_label(run)
    assert found
    assert {picture.name for picture in found.pictures} == {f"unlabeled/{number}.png" for number in (4, 5, 6)}
    assert all(picture.lines[0] in ("a?", "b?") for picture in found.pictures)
    html = page([run])
    assert "What to label next" in html
    assert found.command in html


def test_a_run_without_images_to_label_has_no_list(run: StoredRun, tmp_path: Path):
    for file in (tmp_path / "photos/unlabeled").iterdir():
        file.unlink()
    assert find_to_label(run) is None
