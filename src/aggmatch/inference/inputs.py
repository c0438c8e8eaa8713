"""Converts images to the pixels that a network takes: arrays, PIL images, files, bytes and folders.

Every image is cropped to its centre square and scaled, as images of a folder are for training. Arrays of the right size
stay as they are.
"""

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from aggmatch.data.own.decode import Budget, decode_stream, open_regular, printable, reason
from aggmatch.data.own.folder import find_images
from aggmatch.errors import AggMatchError
from aggmatch.models import images_at_once

Item: TypeAlias = NDArray[Any] | Image.Image | bytes | Path
"""One image: an array of shape (H, W, C), a PIL image, the content of an image file, or the file."""
ImagesLike: TypeAlias = NDArray[Any] | Image.Image | bytes | str | Path | Iterable[Any]
"""Images as `listed` takes them."""
ValueRange: TypeAlias = tuple[float, float]
"""The values of black and of white."""
CHANNELS = (1, 3)
GREY_MODES = ("1", "L", "I", "F")
"""Modes of PIL images without colour; there are variants such as `I;16`."""


class InvalidImages(AggMatchError, ValueError):  # noqa: N818 - the message says what is wrong
    """Images that cannot be used. It is also a `ValueError`, as scikit-learn expects."""


class Size(NamedTuple):
    """What is known about images before they are scaled."""

    side: int | None
    """The smallest height or width in pixels; None if there are files, which are not opened for this."""
    channels: int
    """1 if all images are known to be grey, else 3."""


def listed(images: ImagesLike, value_range: ValueRange | None = None) -> list[Item]:
    """Return images as a list.

    images: an array (N, H, W), (N, H, W, C) or (N, C, H, W) with one or three channels C; one PIL image, image file or
    content of one (bytes); a folder, which stands for the image files in it, sorted; or a list of these, in which an
    array is one image (H, W), (H, W, C) or (C, H, W). Where C could be first or last, it is last.
    value_range: the values of black and white in arrays, see `find_range`; values beyond them are clipped.

    Example: `listed(["cat.jpg", numpy.zeros((32, 32, 3)), "photos"])`.
    """
    if isinstance(images, Tensor):
        images = images.numpy(force=True)
    if isinstance(images, np.ndarray) and images.ndim != 1:
        return list(to_bytes(channels_last(images, 1), value_range or find_range(images)))
    items = [images] if isinstance(images, (str, os.PathLike, bytes, Image.Image)) else list(images)
    values = value_range or find_range(items)
    return [part for position, item in enumerate(items) for part in expanded(item, position, values)]


def expanded(item: Any, position: int, values: ValueRange) -> Sequence[Item]:
    """Return what an element of a list stands for: one image, or those of a folder."""
    if isinstance(item, (np.ndarray, Tensor)):
        return [to_bytes(channels_last(np.asarray(item), 0), values)]
    if isinstance(item, (str, os.PathLike)):
        path = Path(item)
        return find_images(path) if path.is_dir() else [path]
    if isinstance(item, (bytes, Image.Image)):
        return [item]
    raise InvalidImages(
        f"Image {position} must be an array, a PIL image, bytes, or the path of a file or folder, "
        f"got {type(item).__name__}."
    )


# Arrays -----------------------------------------------------------------------------------------------------------


def channels_last(array: NDArray[Any], leading: int) -> NDArray[Any]:
    """Return an array of images with the channels as its last axis.

    leading: number of axes before those of an image: 1 for (N, ...), 0 for one image.
    """
    shape = array.shape[leading:]
    if len(shape) == 3 and shape[2] in CHANNELS:
        return array
    if len(shape) == 3 and shape[0] in CHANNELS:
        return np.moveaxis(array, leading, -1)
    if len(shape) == 2 and not (leading and shape[1] in CHANNELS):
        return array[..., None]
    number = "N, " * leading
    advice = " Put one image into a list: [image]." if leading and array.ndim in (2, 3) else ""
    raise InvalidImages(
        f"An array of images must have shape ({number}H, W), ({number}H, W, 1 or 3) or ({number}1 or 3, H, W), "
        f"got {array.shape}.{advice}"
    )


def find_range(images: ImagesLike) -> ValueRange:
    """Return the values of black and white: 0 and 255, or 0 and 1 if no array holds bytes or a value above 1.

    images: an array, or a list of images of which only the arrays count. Raises `InvalidImages` for other values, whose
    meaning nobody can know.
    """
    many = isinstance(images, np.ndarray) and images.ndim != 1
    items = [images] if many else images if isinstance(images, Iterable) else []
    filled = [np.asarray(item) for item in items if isinstance(item, (np.ndarray, Tensor)) and len(item)]
    if not filled or any(array.dtype == np.uint8 for array in filled):
        return 0, 255
    if wrong := [array.dtype for array in filled if array.dtype.kind not in "buif"]:
        raise InvalidImages(f"Pixels must be numbers, got {wrong[0]}.")
    low, high = float(min(array.min() for array in filled)), float(max(array.max() for array in filled))
    if not 0 <= low <= high <= 255:
        raise InvalidImages(
            f"Pixels must be in [0, 1] or in [0, 255], got {low:.6g} to {high:.6g}. AggMatchClassifier takes others "
            f"with value_range=(black, white)."
        )
    return 0, 1 if high <= 1 else 255


def to_bytes(array: NDArray[Any], values: ValueRange) -> NDArray[np.uint8]:
    """Return an array as uint8, from 0 for black to 255 for white."""
    if array.dtype == np.uint8 and values == (0, 255):
        return array
    black, white = values
    scaled = (array.astype(np.float32) - black) * (255 / (white - black))
    if not np.isfinite(scaled).all():
        raise InvalidImages("Pixels must be finite numbers.")
    return np.rint(scaled.clip(0, 255)).astype(np.uint8)


# Pixels -----------------------------------------------------------------------------------------------------------


def size_of(items: Sequence[Item]) -> Size:
    """Return the smallest side of the images, and whether they have colours."""
    sides: list[int] = []
    grey = True
    for item in items:
        if isinstance(item, np.ndarray):
            sides.append(min(item.shape[:2]))
            grey = grey and item.shape[2] == 1
        elif isinstance(item, Image.Image):
            sides.append(min(item.size))
            grey = grey and item.mode.split(";")[0] in GREY_MODES
        else:
            return Size(None, 3)
    return Size(min(sides, default=None), 1 if grey else 3)


def pixel_batches(items: Sequence[Item], side: int, channels: int) -> Iterator[Tensor]:
    """Yield images as uint8, (B, channels, side, side), in their order and as many at once as fit into memory.

    There is at least one batch, which may be empty. Raises `InvalidImages` if an image cannot be read.

    Example: `torch.cat(list(pixel_batches(listed("photos"), side=32, channels=3)))`.
    """

    budget = Budget()

    def convert(position: int) -> Tensor:
        item = items[position]
        try:
            return one_image(item, side, channels, budget)
        except Exception as error:  # Pillow raises almost any exception for invalid content
            name = f" ({printable(item)})" if isinstance(item, Path) else ""
            raise InvalidImages(f"Image {position}{name} cannot be read: {reason(error)}.") from error

    batch = images_at_once(side)
    for first in range(0, max(len(items), 1), batch):
        with warnings.catch_warnings(), ThreadPoolExecutor() as pool:
            warnings.simplefilter("ignore")  # Pillow warns about unusual images; threads share the filters
            images = list(pool.map(convert, range(first, min(first + batch, len(items)))))
        yield torch.stack(images) if images else torch.zeros(0, channels, side, side, dtype=torch.uint8)


def one_image(item: Item, side: int, channels: int, budget: Budget) -> Tensor:
    """Return an image as uint8, (channels, side, side). budget: shared by all threads that decode."""
    if isinstance(item, np.ndarray):
        if item.shape == (side, side, channels):
            return torch.from_numpy(np.moveaxis(item, 2, 0).copy())
        item = Image.fromarray(np.ascontiguousarray(item[..., 0] if item.shape[2] == 1 else item))
    if isinstance(item, Image.Image):
        item = encoded(item)
    with BytesIO(item) if isinstance(item, bytes) else open_regular(item) as stream:
        return decode_stream(stream, side, channels, budget)


def encoded(image: Image.Image) -> bytes:
    """Return a PIL image as the content of an uncompressed file, so that it is read as files are."""
    content = BytesIO()
    image.save(content, "TIFF", exif=image.getexif())
    return content.getvalue()
