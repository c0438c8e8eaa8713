"""Many image files as pixels: in parallel, with progress, and found again in the cache."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from aggmatch.cache import Cache
from aggmatch.data import pixels as module
from aggmatch.data.pixels import decode_all

LONG_AGO = 1_600_000_000


def paint(file: Path, color: tuple[int, int, int] = (200, 30, 30), size: tuple[int, int] = (20, 20)) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(file)
    os.utime(file, (LONG_AGO, LONG_AGO))
    return file


def test_a_warning_names_unreadable_files_which_are_left_out(tmp_path):
    files = [paint(tmp_path / "good.png"), tmp_path / "text.jpg", tmp_path / "empty.png", tmp_path / "gone.png"]
    files[1].write_text("not an image")
    files[2].touch()
    cut = paint(tmp_path / "cut.png", size=(300, 300))
    cut.write_bytes(cut.read_bytes()[:100])
    with pytest.warns(UserWarning, match=r"4 of 6 files cannot be read .*text\.jpg \(not a JPEG.* and 1 more"):
        pixels, kept = decode_all([*files, cut, paint(tmp_path / "last.png")], 8, 3)
    assert kept == [0, 5]
    assert pixels.shape == (2, 3, 8, 8)


