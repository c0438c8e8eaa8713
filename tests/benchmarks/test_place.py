"""The benchmark of places: what it writes, and that every number is there."""

import json
import runpy
import sys
from pathlib import Path

import numpy as np

PLACE = Path(__file__).parents[2] / "benchmarks/place.py"


def test_the_file_of_images_is_written_once_and_has_every_image(tmp_path):
    write_images = runpy.run_path(str(PLACE))["write_images"]
    assert write_images(tmp_path / "images.npy", 5000) > 0
    images = np.load(tmp_path / "images.npy", mmap_mode="r")
    assert images.shape == (5000, 3, 64, 64)
    assert not np.array_equal(images[0], images[4096]), "a repeated piece has other values"
    assert write_images(tmp_path / "images.npy", 5000) == 0


def test_every_place_is_timed_and_the_numbers_are_stored(tmp_path, monkeypatch, capsys):
    words = ["--folder", tmp_path, "--images", 200, "--rounds", 1, "--steps", 1, "--json", tmp_path / "found.json"]
    monkeypatch.setattr(sys, "argv", ["place.py", *map(str, words)])
    runpy.run_path(str(PLACE), run_name="__main__")
    found = json.loads((tmp_path / "found.json").read_text())
    assert list(found["places"]) == ["device", "host", "disk"]
    assert all(speed > 0 for speed in found["images_per_second"].values())
    assert "disk  :" in capsys.readouterr().out
