"""Small image files for tests."""

import os
from pathlib import Path

from PIL import Image

LONG_AGO = 1_600_000_000
"""A time of change: files that changed just now are compared by their content."""


def paint(file: Path, color: tuple[int, int, int] = (200, 30, 30), size: tuple[int, int] = (20, 20)) -> Path:
    """Write an image of one colour; return its path."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(file)
    os.utime(file, (LONG_AGO, LONG_AGO))
    return file
