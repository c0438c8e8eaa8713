"""Features of a frozen backbone: computed once for several views of every image, and cached on disk.

Shapes: N images, V views of one kind, D features.
"""

import hashlib
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from aggmatch.augment.views import Augmenter
from aggmatch.devices import computing_on
from aggmatch.models import Network, images_at_once
from aggmatch.models.pretrained import digest_of
from aggmatch.progress import Progress, following
from aggmatch.storage.cache import Cache
from aggmatch.storage.files import cache_folder
from aggmatch.storage.row_cache import Names, RowCache

VERSION = 3
"""Changes when the same images and settings give other features."""
PLAIN = "plain"
AVERAGED = 2
"""Weak views in the mean features of an image."""
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Features:
    """Features of N images by a frozen backbone, with their labels. A network on this backbone takes them as images."""

    inputs: Tensor
    """float16, (N, D)."""
    labels: Tensor
    """int64, (N,)."""

    def __len__(self) -> int:
        return len(self.labels)


class FeatureStore:
    """Computes features of views of images, or finds them in the cache.

    network: with a frozen backbone, on the device that computes. augment: makes the views. cache_dir: the setting
    `runtime.cache_dir`. Features are cached by image: they depend on its content, the weights, and how views are made,
    and not on the other images. So only images that no earlier call has seen are computed, and the same image always
    gets the same views.

    Example: `FeatureStore(network, augment).views(pixels, {"weak": 2, "strong": 4})["weak"]` has shape (N, 2, D).
    """

    def __init__(self, network: Network, augment: Augmenter, cache_dir: str | Path | None = None) -> None:
        assert network.frozen is not None, "the network has no frozen backbone"
        self.network, self.augment = network, augment
        self.cache = RowCache(Cache(cache_folder(cache_dir) / "features"))
        self.device = network.mean.device
        norm = [*network.mean.flatten().tolist(), *network.deviation.flatten().tolist()]
        weights, code = digest_of(network.frozen), source_of(network.frozen)
        self.origin = (VERSION, weights, code, network.side, network.mixed, norm, self.device.type)

    def views(self, pixels: Tensor, counts: dict[str, int], progress: Progress | None = None) -> dict[str, Tensor]:
        """Return the features of several views of each image.

        pixels: uint8, (N, C, H, W). counts: name of a view → V. progress: see `following`; it counts views of images.
        Returns float16, (N, V, D), on the CPU, by name.
        """
        images = Distinct(pixels)
        wanted = [(name, number) for name, count in counts.items() for number in range(count)]
        found = {view: self.cache.lookup(self.key(pixels, *view), images.digests) for view in wanted}
        done, total = 0, sum(int((~each.known).sum()) for each in found.values())
        if total:
            with following(progress, "Computing features", "images") as report:

                def add(count: int) -> None:
                    nonlocal done
                    done += count
                    report(done, total)

                for view, each in found.items():
                    missing = np.flatnonzero(~each.known)
                    if len(missing):
                        computed = self.compute(pixels, images, missing, *view, add)
                        self.cache.store(self.key(pixels, *view), images.digests[missing], computed)
                        each.complete(computed)
        stacked = {
            name: np.stack([found[name, number].rows[images.position] for number in range(count)], 1)
            for name, count in counts.items()
        }
        return {name: torch.from_numpy(array) for name, array in stacked.items()}

    def plain(self, pixels: Tensor) -> Tensor:
        """Return the features of the images themselves: float16, (N, D), on the CPU."""
        return self.views(pixels, {PLAIN: 1})[PLAIN][:, 0]

    def averaged(self, pixels: Tensor) -> Tensor:
        """Return the mean features of each image and of two of its weak views: float32, (N, D), on the CPU."""
        found = self.views(pixels, {PLAIN: 1, "weak": AVERAGED})
        return torch.cat([found[PLAIN], found["weak"]], 1).float().mean(1)

    def key(self, pixels: Tensor, name: str, number: int) -> str:
        """Return the key of a view in the cache: everything on which its features depend, apart from the image."""
        made_by = replace(self.augment.settings, cached=1, feature_dropout=0.0)  # both change no view
        making = None if name == PLAIN else (made_by, self.augment.mirror, number)
        return repr(("features", *self.origin, tuple(pixels.shape[1:]), name, making))

    def compute(
        self,
        pixels: Tensor,
        images: "Distinct",
        chosen: NDArray[np.int64],
        name: str,
        number: int,
        add: Callable[[int], None],
    ) -> NDArray[np.float16]:
        """Return the features of one view of some images.

        chosen: which of the distinct images. add: called with the number of further images. All batches have the same
        size, the last one with copies of an image: other sizes give slightly other numbers.
        """
        size = batch_of(self.network, pixels.shape[-1])
        batches = [chosen[start : start + size] for start in range(0, len(chosen), size)]

        def embed(position: int) -> NDArray[np.float16]:
            rows = batches[position]
            seeds = [seed_of(name, number, digest) for digest in images.digests[rows]]
            view = self.augment.each(name, pixels[images.first[rows]].to(self.device), seeds)
            full = torch.cat([view, view[-1:].expand(size - len(view), *view.shape[1:])])
            features: NDArray[np.float16] = self.network.embed(full)[: len(view)].half().cpu().numpy()
            add(len(features))
            return features

        return np.concatenate(in_parallel(embed, len(batches), self.device))


def source_of(backbone: nn.Module) -> str:
    """Return the name of the class of a backbone and a hash of its source: equal weights may compute others."""
    try:
        source = inspect.getsource(type(backbone))
    except (OSError, TypeError):  # typed into a console
        source = ""
    return f"{type(backbone).__qualname__} {hashlib.blake2b(source.encode(), digest_size=8).hexdigest()}"


def seed_of(name: str, number: int, digest: np.void) -> int:
    """Return the seed of a view of the image with this digest."""
    return int.from_bytes(hashlib.blake2b(f"{name} {number} ".encode() + digest.tobytes(), digest_size=7).digest())


def embed_all(network: Network, pixels: Tensor) -> Tensor:
    """Return the features of images (N, C, H, W) by the frozen backbone of a network, (N, D), on the CPU; no cache."""
    batches, device = pixels.split(batch_of(network, pixels.shape[-1])), network.mean.device
    return torch.cat(
        in_parallel(lambda position: network.embed(batches[position].to(device)).cpu(), len(batches), device)
    )


def batch_of(network: Network, side: int) -> int:
    """Return the number of images of this side in a batch that suits a pretrained backbone."""
    most = 200 if network.mean.device.type == "cpu" else 8000
    return images_at_once(max(side, network.side), most)


def in_parallel(work: Callable[[int], Result], count: int, device: torch.device) -> list[Result]:
    """Return work(0), work(1) and so on, computed by as many threads as torch uses, each of which computes alone.

    Threads that share the work of one layer wait for each other at its end. On a busy machine that is ten times slower.
    On a GPU there is one thread.
    """
    threads = torch.get_num_threads()
    workers = threads if device.type == "cpu" else 1

    def prepare() -> None:
        torch.set_num_threads(1)
        if device.type == "cuda":
            torch.cuda.set_device(device)  # each thread has its own; kernels are launched there

    try:
        with computing_on(device, search=False), ThreadPoolExecutor(workers, initializer=prepare) as pool:
            return list(pool.map(work, range(count)))
    finally:
        torch.set_num_threads(threads)


class Distinct:
    """The distinct images among N images, in an order that depends on their content alone."""

    def __init__(self, pixels: Tensor) -> None:
        content = [hashlib.blake2b(image.numpy(), digest_size=16).digest() for image in pixels.cpu().contiguous()]
        digests, first, position = np.unique(np.array(content, dtype="V16"), return_index=True, return_inverse=True)
        self.digests: Names = digests
        """Hash of the content of each distinct image."""
        self.first: NDArray[np.int64] = first
        """Where each distinct image occurs first among the N images."""
        self.position: NDArray[np.int64] = position.reshape(-1)
        """Which of the distinct images each of the N images is."""
