"""Where the images of a run are kept: on the training device, in the memory of the host, or in a file on disk."""

import hashlib
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from aggmatch.data import DataSet, Images
from aggmatch.data.rows import SHARE, as_tensor, file_behind, not_stored, pixel_folder
from aggmatch.devices import free_memory
from aggmatch.errors import AggMatchError
from aggmatch.settings import RuntimeSettings
from aggmatch.storage.cache import LIMIT, Cache

Place = Literal["device", "host", "disk"]


def choose_place(wanted: str, pixels: Tensor, device: torch.device) -> Place:
    """Return where training images are kept.

    wanted: the setting `runtime.place`. pixels: the images, (N, C, H, W) uint8, in memory or a map of a file. With
    `auto`, the first place with room for them, where they take at most half of the memory that is free without them.
    On a CPU, device and host are the same memory, which is called `device`.

    Example: `choose_place("auto", data.train.pixels, torch.device("cuda"))` is "device" for CIFAR-10.
    """
    on_cpu, size = device.type == "cpu", pixels.nbytes
    if wanted == "auto":
        already = 0 if file_behind(pixels) else size
        if not on_cpu and size <= SHARE * free_memory(device):
            wanted = "device"
        else:
            wanted = "host" if size <= SHARE * (free_memory(torch.device("cpu")) + already) else "disk"
    if wanted == "disk":
        return "disk"
    return "host" if wanted == "host" and not on_cpu else "device"


def put_images(data: DataSet, place: Place, device: torch.device, runtime: RuntimeSettings) -> DataSet:
    """Return the data set with its images in this place, or where they can be copied to the device from.

    On disk, each set of images is a map of a file: that of the data set itself, or one in the cache folder, which is
    written once. For the host, a map is read into memory.

    Example: `put_images(data, "disk", device, RuntimeSettings()).train.pixels` takes no memory.
    """
    train, test = data.train, data.test
    if place == "disk":
        own = train.pixels.nbytes + test.pixels.nbytes  # of this data set, besides those of others
        cache = Cache(pixel_folder(runtime.cache_dir), LIMIT + own)
        train, test = on_disk(train, cache), on_disk(test, cache)
    elif place == "host" or device.type == "cpu":
        train = in_memory(train)
    return data if (train, test) == (data.train, data.test) else replace(data, train=train, test=test)


def in_memory(images: Images) -> Images:
    """Return the images in memory, if they are a map of a file."""
    return images if file_behind(images.pixels) is None else replace(images, pixels=images.pixels.clone())


def on_disk(images: Images, cache: Cache) -> Images:
    """Return the images as a map of a file: the one they already are a map of, or one in the cache."""
    if not len(images) or file_behind(images.pixels):
        return images
    key = content_of(images.pixels)
    found = cache.lookup(key, mapped="pixels")
    if found is None:
        try:
            cache.write(key, {"pixels": images.pixels.cpu().numpy()})
        except OSError as error:
            raise not_stored(cache.folder, images.pixels.nbytes, error) from None
        found = cache.lookup(key, mapped="pixels")
    if found is None:
        raise AggMatchError(f"{cache.folder} does not hold what was written to it. Check the disk.")
    return replace(images, pixels=as_tensor(found["pixels"]))


def content_of(pixels: Tensor) -> str:
    """Return a hash of images and their shape."""
    digest = hashlib.blake2b(repr(tuple(pixels.shape)).encode(), digest_size=20)
    for image in pixels.cpu().numpy():
        digest.update(image.tobytes())
    return digest.hexdigest()
