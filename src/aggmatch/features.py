"""Features of a frozen backbone: computed once for several views of every image, and cached on disk.

Shapes: N images, V views of one kind, D features.
"""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aggmatch.augment.views import Augmenter
from aggmatch.cache import Cache
from aggmatch.devices import computing_on
from aggmatch.models import Network, images_at_once
from aggmatch.models.pretrained import digest_of
from aggmatch.progress import Progress, following

VERSION = 1
"""Changes when the same images and settings give other features."""
PLAIN = "plain"


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

    network: with a frozen backbone, on the device that computes. augment: makes the views. cache: where features are
    kept; their key is the content of all images, the weights, and how views are made, so that neither the order of the
    images nor their labels matter. The same images always get the same views.

    Example: `FeatureStore(network, augment, Cache(folder)).views(pixels, {"weak": 2, "strong": 4})["weak"]` has shape
    (N, 2, D).
    """

    def __init__(self, network: Network, augment: Augmenter, cache: Cache) -> None:
        assert network.frozen is not None, "the network has no frozen backbone"
        self.network, self.augment, self.cache = network, augment, cache
        self.device = network.mean.device
        norm = [*network.mean.flatten().tolist(), *network.deviation.flatten().tolist()]
        self.origin = (VERSION, digest_of(network.frozen), network.side, network.mixed, norm, self.device.type)

    def views(self, pixels: Tensor, counts: dict[str, int], progress: Progress | None = None) -> dict[str, Tensor]:
        """Return the features of several views of each image.

        pixels: uint8, (N, C, H, W). counts: name of a view → V. progress: see `following`; it counts views of images.
        Returns float16, (N, V, D), on the CPU, by name.
        """
        images = Distinct(pixels)
        wanted = [(name, number) for name, count in counts.items() for number in range(count)]
        found = {key: self.cache.lookup(self.key(images, *key)) for key in wanted}
        missing = [key for key, entry in found.items() if entry is None]
        arrays = {key: entry["features"] for key, entry in found.items() if entry is not None}
        if missing:
            with following(progress, "Computing features", "images") as report:
                for round_, key in enumerate(missing):
                    arrays[key] = self.compute(
                        pixels[images.first], *key, images.digest, Part(report, round_, len(missing))
                    )
                    self.cache.store(self.key(images, *key), {"features": arrays[key]})
        stacked = {
            name: np.stack([arrays[name, number][images.position] for number in range(count)], 1)
            for name, count in counts.items()
        }
        return {name: torch.from_numpy(array) for name, array in stacked.items()}

    def plain(self, pixels: Tensor) -> Tensor:
        """Return the features of the images themselves: float16, (N, D), on the CPU."""
        return self.views(pixels, {PLAIN: 1})[PLAIN][:, 0]

    def key(self, images: "Distinct", name: str, number: int) -> str:
        """Return the key of one view of all images in the cache: everything on which its features depend."""
        made_by = replace(self.augment.settings, cached=1, feature_dropout=0.0)  # both change no view
        making = None if name == PLAIN else (made_by, self.augment.mirror, number)
        return repr(("features", *self.origin, images.digest, name, making))

    def compute(self, pixels: Tensor, name: str, number: int, digest: str, report: "Part") -> NDArray[np.float16]:
        """Return the features of one view of each image, (N, D)."""
        side, most = max(pixels.shape[-1], self.network.side), 200 if self.device.type == "cpu" else 8000
        chunks = pixels.split(images_at_once(side, most))

        def embed(position: int) -> NDArray[np.float16]:
            seed = hashlib.blake2b(f"{digest} {name} {number} {position}".encode(), digest_size=7).digest()
            generator = torch.Generator(self.device).manual_seed(int.from_bytes(seed))
            with torch.no_grad():
                view = self.augment(name, chunks[position].to(self.device), generator)
                features: NDArray[np.float16] = self.network.embed(view).half().cpu().numpy()
            report.add(len(features), len(pixels))
            return features

        with computing_on(self.device), one_thread_each(self.device) as pool:
            return np.concatenate(list(pool.map(embed, range(len(chunks)))))


@contextmanager
def one_thread_each(device: torch.device) -> Iterator[ThreadPoolExecutor]:
    """Within, a pool of as many threads as torch uses, each of which computes alone.

    Threads that share the work of one layer wait for each other at its end. On a busy machine that is ten times slower.
    On a GPU there is one thread.
    """
    threads = torch.get_num_threads()
    count = threads if device.type == "cpu" else 1
    try:
        with ThreadPoolExecutor(count, initializer=lambda: torch.set_num_threads(1)) as pool:
            yield pool
    finally:
        torch.set_num_threads(threads)


class Distinct:
    """The distinct images among N images, in an order that depends on their content alone."""

    def __init__(self, pixels: Tensor) -> None:
        content = [hashlib.blake2b(image.numpy(), digest_size=16).digest() for image in pixels.cpu().contiguous()]
        digests, first, position = np.unique(np.array(content, dtype="V16"), return_index=True, return_inverse=True)
        self.first = torch.from_numpy(first)
        """Where each distinct image occurs first among the N images."""
        self.position: NDArray[np.int64] = position.reshape(-1)
        """Which of the distinct images each of the N images is."""
        self.digest = hashlib.blake2b(digests.tobytes() + repr(pixels.shape[1:]).encode(), digest_size=16).hexdigest()
        """Hash of their content."""


class Part:
    """Progress of one of several equal rounds."""

    def __init__(self, report: Progress, round_: int, rounds: int) -> None:
        self.report, self.round, self.rounds, self.done = report, round_, rounds, 0

    def add(self, count: int, total: int) -> None:
        """Count further images of this round, which has `total`."""
        self.done += count
        self.report(self.round * total + self.done, self.rounds * total)
