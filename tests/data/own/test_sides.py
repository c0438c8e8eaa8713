"""The typical size of images of your own."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from aggmatch.data.own.sides import typical_side


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of three photos, of which one is larger, and of files that are none."""
    folder = tmp_path / "photos"
    for number, size in enumerate([(120, 90), (90, 200), (2000, 3000)]):
        (folder / str(number)).mkdir(parents=True)
        Image.new("L", size).save(folder / str(number) / "photo.png")
    (folder / "corrupt.jpg").write_text("not an image")
    (folder / "labels.csv").write_text("file,label")
    return folder


def test_the_typical_side_is_the_median_of_the_shorter_ones(photos: Path):
    assert typical_side(photos) == 90


def test_archives_are_not_unpacked_for_it(photos: Path, tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for file in photos.rglob("*.*"):
            archive.write(file, file.relative_to(photos))
    assert typical_side(tmp_path / "photos.zip") == 90


@pytest.mark.parametrize("shape", [(5, 40, 70), (5, 40, 70, 3), (5, 3, 40, 70)])
def test_arrays_tell_their_side(tmp_path: Path, shape: tuple[int, ...]):
    np.savez(tmp_path / "data.npz", images=np.zeros(shape, np.uint8))
    assert typical_side(tmp_path / "data.npz") == 40


def test_without_a_readable_image_the_side_is_unknown(tmp_path: Path):
    assert typical_side(tmp_path) is None
    (tmp_path / "data.zip").write_text("not an archive")
    assert typical_side(tmp_path / "data.zip") is None
