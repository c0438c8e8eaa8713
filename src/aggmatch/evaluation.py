"""Predictions and accuracies of networks on labelled images."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from aggmatch.data import Images
from aggmatch.devices import choose_threads, computing_on, search_pays
from aggmatch.methods import Method
from aggmatch.models import Network, images_at_once
from aggmatch.tables import plural

if TYPE_CHECKING:
    from aggmatch.features.store import Features


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Predictions on N labelled images of Y classes, and the accuracies that follow from them.

    Example: `Evaluation(probs=torch.eye(3), labels=torch.tensor([0, 1, 1])).accuracy` is 66.67.
    """

    probs: Tensor
    """Class probabilities, (N, Y), on the CPU."""
    labels: Tensor
    """True classes, (N,), on the CPU."""

    def __repr__(self) -> str:
        right = f"{self.accuracy:.2f} % right of " if len(self.labels) else ""
        return f"<Evaluation: {right}{plural(len(self.labels), 'image')}>"

    @property
    def predicted(self) -> Tensor:
        """Most probable class of each image, (N,)."""
        return self.probs.argmax(1)

    @property
    def accuracy(self) -> float:
        """Share of correct predictions in percent."""
        return 100 * int((self.predicted == self.labels).sum()) / len(self.labels)

    @property
    def confusion(self) -> Tensor:
        """Number of images by true class and predicted class, (Y, Y)."""
        classes = self.probs.shape[1]
        return torch.bincount(self.labels * classes + self.predicted, minlength=classes**2).view(classes, classes)

    @property
    def balanced_accuracy(self) -> float:
        """Mean of the accuracies of the classes that have images, in percent."""
        of_class = [accuracy for accuracy, count in zip(self.class_accuracy, self.class_sizes, strict=True) if count]
        return sum(of_class) / len(of_class)

    @property
    def class_sizes(self) -> list[int]:
        """Number of images of each class."""
        return self.confusion.sum(1).tolist()

    @property
    def class_accuracy(self) -> list[float]:
        """Accuracy of each class in percent; 0 for a class without images."""
        confusion = self.confusion.double()
        return (100 * confusion.diagonal() / confusion.sum(1).clamp(min=1)).tolist()


@contextmanager
def evaluating(network: Network, threads: int) -> Iterator[torch.device]:
    """Within, the network uses running BatchNorm statistics and needs no gradients; yields its device."""
    device, training = next(network.parameters()).device, network.training
    network.eval()
    try:
        with torch.no_grad(), computing_on(device, choose_threads(threads, network), search=search_pays(network)):
            yield device
    finally:
        network.train(training)


def predict(method: Method[Any], network: Network, pixels: Tensor, *, threads: int = 0) -> Tensor:
    """Return class probabilities, (N, Y) on the CPU, computed in batches with running BatchNorm statistics.

    pixels: uint8 images (N, C, H, W) on any device, or features (N, D) by the frozen backbone of the network; N may be
    0. threads: see `devices.choose_threads`. If several processes train the network, all of them must call this: each
    computes some of the batches, and all return the whole.
    """
    if network.frozen is not None and pixels.ndim == 4:
        from aggmatch.features.store import embed_all

        pixels = embed_all(network, pixels)
    side = max(pixels.shape[-1], network.side) if pixels.ndim == 4 else 1  # features are small
    with evaluating(network, threads) as device:
        parts, processes = pixels.split(images_at_once(side)), network.processes
        if processes is None:
            return torch.cat([method.predict(network, part.to(device)).cpu() for part in parts])
        probs_NY = torch.zeros(len(pixels), network.classes, device=device)
        batches = list(zip(parts, probs_NY.split(len(parts[0])), strict=True))
        for part, rows_BY in batches[processes.rank :: processes.world]:
            rows_BY.copy_(method.predict(network, part.to(device)))
        return processes.add_up(probs_NY).cpu()  # a row is 0 on all processes but one, so the sum is exact


def prepare(method: Method[Any], network: Network, labeled: "Images | Features", *, threads: int = 0) -> None:
    """Give a method the labelled images, with their given labels, that it needs to predict with a network."""
    if type(method).prepare is Method.prepare:  # it needs none, and there may be many
        return
    with evaluating(network, threads) as device:
        method.prepare(network, labeled.inputs.to(device), labeled.labels.to(device))


def evaluate(
    method: Method[Any],
    network: Network,
    images: "Images | Features",
    labeled: "Images | Features | None" = None,
    *,
    threads: int = 0,
) -> Evaluation:
    """Predict labelled images with a network, by the rule of its method.

    images: the images to predict, with their true classes, or their features by the frozen backbone of the network.
    labeled: the labelled training images with their given labels, with which some methods compare; None if the method
    is already prepared for this network.
    threads: CPU threads; 0 chooses them by the size of the network.

    Example: `evaluate(run.state.method, run.state.average, run.data.test, run.labeled).accuracy`.
    """
    if labeled is not None:
        prepare(method, network, labeled, threads=threads)
    return Evaluation(predict(method, network, images.inputs, threads=threads), images.labels)
