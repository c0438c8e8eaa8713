"""One image file as pixels, safely: regular files of known formats only, with a bound on the memory they take.

A file is whatever its content says. Its name does not matter: a PostScript program called `x.jpg` is not run.
"""

import os
import stat
import threading
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, BytesIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""Ends of the names of image files, in upper or lower case."""
UNSUPPORTED = (".avif", ".cr2", ".dng", ".heic", ".heif", ".jxl", ".nef")
"""Photo formats that cannot be read; a warning counts these files."""
FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF", "PPM")
"""The only parts of Pillow that see a file. Others run programs (PostScript) or fail in unexpected ways."""
DECODER = 1
"""Version of the steps from a file to pixels: cached pixels of another version are not used."""
MOST_PIXELS = 100_000_000
"""Largest image that is decoded. A JPEG counts after its reduction, which needs no memory for the whole image."""
MOST_BYTES = 2**30
"""Largest file that is opened."""
STRIP = 2**20
"""Pixels of a deep image that are scaled at a time."""


class Budget:
    """Limits the pixels that all threads decode at the same time, and so the memory: about 16 bytes for each pixel.

    Example: `with budget.taking(width * height): image.load()`.
    """

    def __init__(self, pixels: int = MOST_PIXELS) -> None:
        self.total = self.free = pixels
        self.changed = threading.Condition()

    @contextmanager
    def taking(self, pixels: int) -> Iterator[None]:
        """Wait until this number of pixels is free, and hold them within; at most the total is waited for."""
        pixels = min(pixels, self.total)
        with self.changed:
            self.changed.wait_for(lambda: self.free >= pixels)
            self.free -= pixels
        try:
            yield
        finally:
            with self.changed:
                self.free += pixels
                self.changed.notify_all()


def open_regular(file: Path) -> BufferedReader:
    """Open a file to read bytes; raise OSError if it is not a regular one, such as a FIFO, or larger than 1 GiB."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO without a writer would block
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size <= MOST_BYTES:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError("larger than 1 GiB" if stat.S_ISREG(status.st_mode) else "not a regular file")


def decode(file: Path, side: int, channels: int) -> Tensor:
    """Read an image as uint8, (channels, side, side): rotated as its EXIF data says, then cropped to its centre square.

    Transparent pixels become white. Images of more than 8 bits are scaled from their smallest to their largest value.
    Raises almost any exception, as Pillow does, if the file is not an image; `reason` puts it into words.

    Example: `decode(Path("photo.jpg"), 32, 3).shape` is (3, 32, 32).
    """
    with open_regular(file) as stream:
        return decode_stream(stream, side, channels, Budget())


def decode_stream(stream: BufferedReader | BytesIO, side: int, channels: int, budget: Budget) -> Tensor:
    """Read an image from an open file; see `decode`. budget: shared by all threads that decode."""
    mode = "RGB" if channels == 3 else "L"
    with opened(stream, mode, side, budget) as image:
        if image.has_transparency_data:
            layer = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
        plain = image if image.mode == mode else image.convert(mode)
        square = ImageOps.fit(plain, (side, side), Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.array(square))
    return pixels.permute(2, 0, 1) if channels == 3 else pixels[None]


@contextmanager
def opened(stream: BufferedReader | BytesIO, mode: str, side: int, budget: Budget) -> Iterator[Image.Image]:
    """Within, the upright image with values up to 255: a JPEG at the smallest of its own sizes that is not below side.

    Raises ValueError if the image has too many pixels.
    """
    with Image.open(stream, formats=FORMATS) as image:
        whole = image.width * image.height
        image.draft(mode, (side, side))  # JPEG decodes faster at a fraction of its size
        pixels = image.width * image.height
        if pixels > MOST_PIXELS:
            raise ValueError(f"{pixels:,} pixels, more than {MOST_PIXELS:,}")
        with budget.taking(max(pixels, whole // 3)):  # a progressive JPEG is held whole, with 6 bytes for each pixel
            ImageOps.exif_transpose(image, in_place=True)
            yield in_bytes(image) if image.mode[0] in "IF" else image  # Pillow would clip values above 255


def in_bytes(image: Image.Image) -> Image.Image:
    """Return an image of more than 8 bits as grey bytes, scaled from its smallest to its largest finite value."""
    values = np.asarray(image)
    rows = max(STRIP // image.width, 1)
    strips = [slice(first, first + rows) for first in range(0, len(values), rows)]
    bounds = [(part.min(), part.max()) for strip in strips if len(part := finite(values[strip]))]
    if not bounds:
        raise ValueError("it has no finite value")
    low, high = float(min(bounds)[0]), float(max(high for _, high in bounds))
    scaled = np.empty(values.shape, dtype=np.uint8)
    for strip in strips:
        part = values[strip].astype(np.float64)
        part[~np.isfinite(part)] = np.nan
        scaled[strip] = (255 * np.nan_to_num((part - low) / (high - low or 1))).astype(np.uint8)
    return Image.fromarray(scaled)


def finite(values: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return the finite values as one row of float64."""
    numbers = values.astype(np.float64)
    return numbers[np.isfinite(numbers)]


def read_thumbnail(file: Path, side: int = 96) -> Image.Image:
    """Return a small RGB copy of a photo for people: upright, whole, its longer side at most `side` pixels.

    Raises `OSError` that says why if the file cannot be read.

    Example: `read_thumbnail(Path("photo.jpg")).save("small.jpg")`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns about unusual but readable files
            with open_regular(file) as stream, opened(stream, "RGB", side, Budget()) as image:
                layer = image.convert("RGBA")  # grey, palette and CMYK images, too
                layer.thumbnail((side, side), Image.Resampling.BICUBIC)
                return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    except Exception as error:  # as in `decode`
        raise OSError(f"Cannot read {printable(file)}: {reason(error)}.") from None


def reason(error: Exception) -> str:
    """Return why a file could not be decoded, in a few words."""
    if isinstance(error, UnidentifiedImageError):
        return f"not a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} image"
    if isinstance(error, Image.DecompressionBombError):
        return f"more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels"
    if isinstance(error, MemoryError):
        return "not enough memory"
    if isinstance(error, (OSError, ValueError, SyntaxError)):
        return printable(getattr(error, "strerror", None) or str(error) or "corrupt")
    return "corrupt"


def printable(text: str | Path) -> str:
    """Return a text or path in characters that any file can hold and any terminal can show.

    Bytes that are not UTF-8 and control characters become �.
    """
    valid = os.fsencode(text).decode(errors="replace")
    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) == "Cc" else c for c in valid)
