"""Accuracy of networks on labelled images."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aggmatch.data import Images
from aggmatch.devices import choose_threads, computing_on
from aggmatch.methods import Method
from aggmatch.models import Network, images_at_once


@dataclass(frozen=True)
class Evaluation:
    """Predictions of a network on a labelled set."""

    probs: Tensor
    """(N, Y), on the CPU."""
    labels: Tensor
    """(N,), on the CPU."""

    @property
    def predicted(self) -> Tensor:
        """Most probable class, (N,)."""
        return self.probs.argmax(1)

    @property
    def accuracy(self) -> float:
        """Share of right predictions in percent."""
        return 100 * int((self.predicted == self.labels).sum()) / len(self.labels)

    @property
    def confusion(self) -> Tensor:
        """Counts of (true class, predicted class), (Y, Y)."""
        classes = self.probs.shape[1]
        return torch.bincount(self.labels * classes + self.predicted, minlength=classes**2).view(classes, classes)

    @property
    def balanced_accuracy(self) -> float:
        """Mean of the accuracies within classes, of those that have images, in percent."""
        of_class = [accuracy for accuracy, count in zip(self.class_accuracy, self.class_sizes, strict=True) if count]
        return sum(of_class) / len(of_class)

    @property
    def class_sizes(self) -> list[int]:
        """Images of each class."""
        sizes: list[int] = self.confusion.sum(1).tolist()
        return sizes

    @property
    def class_accuracy(self) -> list[float]:
        """Accuracy within each class in percent; 0 for a class without images."""
        confusion = self.confusion.double()
        return (100 * confusion.diagonal() / confusion.sum(1).clamp(min=1)).tolist()


@torch.no_grad()
def predict(method: Method[Any], network: Network, pixels: Tensor) -> Tensor:
    """Class probabilities of uint8 images (N, C, H, W), a batch at a time, with running BatchNorm statistics; (N, Y).

    The images may lie anywhere; the result lies on the CPU. No images at all give (0, Y).
    """
    device = next(network.parameters()).device
    training = network.training
    network.eval()
    with computing_on(device, choose_threads(0, network)):
        parts = pixels.split(images_at_once(pixels.shape[-1]))
        probs = [method.predict(network, part.to(device)).cpu() for part in parts]
    network.train(training)
    return torch.cat(probs)


@torch.no_grad()
def evaluate(method: Method[Any], network: Network, images: Images, labeled: Images | None = None) -> Evaluation:
    """Predict every image with running BatchNorm statistics, through the method's own rule.

    `labeled` holds the labelled training images with their given labels, which some methods compare with; without it
    the method is taken as prepared.
    """
    if labeled is not None:
        device, training = next(network.parameters()).device, network.training
        network.eval()
        method.prepare(network, labeled.pixels.to(device), labeled.labels.to(device))
        network.train(training)
    return Evaluation(predict(method, network, images.pixels), images.labels)


def accuracies(
    method: Method[Any], average: Network, online: Network, test: Images, labeled: Images
) -> Iterator[tuple[str, float]]:
    """Test accuracy in percent of both networks, under the names of the log."""
    yield "accuracy_average", evaluate(method, average, test, labeled).accuracy
    yield "accuracy_online", evaluate(method, online, test, labeled).accuracy
