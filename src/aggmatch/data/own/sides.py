"""How large images of your own are, from a few of them and without decoding them."""

import statistics
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO

from PIL import Image

from aggmatch.data.own.archive import NPZ
from aggmatch.data.own.decode import FORMATS, SUFFIXES, open_regular
from aggmatch.storage.cache import read_header

LOOKED_AT = 25
"""Images whose size is read."""


def typical_side(path: Path) -> int | None:
    """Return the median of the shorter sides of a few images, in pixels; None if none can be read.

    path: a folder, or a .zip or .npz file. Example: `typical_side(Path("photos"))` is 400 for photos of 400 × 533.
    """
    try:
        sides = list(islice(sides_in(path), LOOKED_AT))
    except Exception:  # damaged archives raise almost any exception; reading the images will report it
        return None
    return statistics.median_low(sides) if sides else None


def sides_in(path: Path) -> Iterator[int]:
    """Yield the shorter side of each readable image."""
    if path.is_dir():
        images = (file for file in path.rglob("*") if is_image(file))
        yield from filter(None, (side_of(partial(open_regular, file)) for file in images))
        return
    with zipfile.ZipFile(path) as archive:
        if path.suffix.lower() == NPZ:
            with archive.open("images.npy") as stream:
                shape, _, _ = read_header(stream)
            yield sorted(shape[1:])[-2]  # channels are fewer than rows or columns
            return
        members = (info for info in archive.infolist() if is_image(Path(info.filename)))
        yield from filter(None, (side_of(partial(archive.open, info)) for info in members))


def is_image(file: Path) -> bool:
    """Whether a file has the name of an image and is not hidden."""
    return file.suffix.lower() in SUFFIXES and not file.name.startswith(".")


def side_of(opening: Callable[[], IO[bytes]]) -> int:
    """Return the shorter side of an image file, of which only the header is read; 0 if it cannot be read."""
    try:
        with opening() as stream, Image.open(stream, formats=FORMATS) as image:
            return min(image.size)
    except Exception:  # Pillow raises almost any exception for a corrupt file
        return 0
