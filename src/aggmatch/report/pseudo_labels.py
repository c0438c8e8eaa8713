"""Pseudo labels of training images by a snapshot: the network's own prediction, and what aggregation makes of it.

The networks predict plain images with running statistics, where training saw weak views and the statistics of its
batches. The queue is dealt to subsets by a fixed seed, so that the same snapshot always says the same.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from aggmatch.data import DataSet, Images, Split
from aggmatch.data.images import UNKNOWN
from aggmatch.errors import AggMatchError
from aggmatch.evaluation import evaluate
from aggmatch.inference.model import Snapshot
from aggmatch.methods import load_method
from aggmatch.methods.aggmatch.aggregation import Aggregate, Memory
from aggmatch.methods.aggmatch.method import AggMatch
from aggmatch.models import Network, Output, images_at_once
from aggmatch.runs.stored import RunRecord

IMAGES = 2000
"""Unlabelled images that stand for all of them."""
BATCH = 500
SEED = 0
"""Seed by which the queue is dealt to subsets."""


@dataclass(frozen=True, eq=False)
class PseudoLabeled:
    """What a snapshot takes training images to be. Tensors are on the CPU."""

    step: int
    index: Tensor
    """Positions among the training images, (N,)."""
    truth: Tensor
    """(N,)."""
    own: Tensor
    """p, the online network's own prediction, (N, Y)."""
    aggregated: Aggregate | None
    """p̄, votes and c̄ where the method has a queue."""
    refines: bool
    """Whether the method's pseudo label is p̄; it is p otherwise."""
    feature: Tensor | None = None
    """v, the online network's features, (N, D), where the method has a queue to compare them with."""

    @property
    def probs(self) -> Tensor:
        """The distribution that the method takes as pseudo label, (N, Y)."""
        return self.aggregated.probs if self.aggregated and self.refines else self.own

    @property
    def confidence(self) -> Tensor:
        """Consensus c̄ where the method has a queue, otherwise the largest probability, (N,)."""
        return self.aggregated.confidence if self.aggregated else self.own.amax(1)

    @property
    def right(self) -> Tensor:
        """Whether the pseudo label is the true class, (N,)."""
        return self.probs.argmax(1) == self.truth


def has_queue(run: RunRecord) -> bool:
    """Whether the run's method aggregates over a queue."""
    return issubclass(load_method(run.method), AggMatch)


def unlabeled_images(data: DataSet, split: Split, *, known: bool) -> Tensor:
    """Training images without a given label, of a `known` class if need be; at most so many, evenly spaced; (N,)."""
    usable = ~torch.isin(split.unlabeled, split.labeled)
    if known:
        usable &= data.train.labels[split.unlabeled] != UNKNOWN
    return evenly(split.unlabeled[usable], IMAGES)


def knows_all_classes(run: RunRecord) -> bool:
    """Whether the true class of every unlabelled image is known."""
    return bool((run.data().train.labels[run.split().unlabeled] != UNKNOWN).all())


def evenly(values: Tensor, count: int) -> Tensor:
    """At most `count` of the values, evenly spaced, in order."""
    count = min(count, len(values))
    return values[torch.arange(count) * len(values) // max(count, 1)]


@lru_cache(maxsize=64)
def pseudo_labels_at(run: RunRecord, path: Path, *, known: bool = True) -> PseudoLabeled:
    """Pseudo labels of the unlabelled images of a run by one of its snapshots, made once for all analyses.

    Of images of a `known` class, unless the truth does not matter.
    """
    data, split = run.data(), run.split()
    index = unlabeled_images(data, split, known=known)
    if not len(index):
        problem = "Nobody knows the classes of the" if known else "There are no"
        raise AggMatchError(f"{problem} unlabelled images of {data.name}.")
    return pseudo_labels(run.snapshot(path), data, split, index)


@torch.no_grad()
def pseudo_labels(snapshot: Snapshot, data: DataSet, split: Split, index: Tensor) -> PseudoLabeled:
    """Pseudo labels of the training images at `index` by a snapshot."""
    images = Images(data.train.pixels[index], data.train.labels[index])
    method = snapshot.method
    if not isinstance(method, AggMatch):
        labeled = Images(data.train.pixels[split.labeled], split.labels)
        own = evaluate(method, snapshot.online, images, labeled).probs
        return PseudoLabeled(snapshot.step, index, images.labels, own, None, refines=False)
    output = look(snapshot.online, images.pixels)
    own, memory = output.logits.softmax(-1), deal(method)
    parts = [
        method.attend(feature, probs, memory)
        for feature, probs in zip(output.feature.split(BATCH), own.split(BATCH), strict=True)
    ]
    aggregated = Aggregate(*(torch.cat(tensors).cpu() for tensors in zip(*parts, strict=True)))
    refines, feature = method.config.refine, output.feature.cpu()
    return PseudoLabeled(snapshot.step, index, images.labels, own.cpu(), aggregated, refines, feature)


@torch.no_grad()
def look(network: Network, pixels: Tensor) -> Output:
    """Features and logits of images, a batch at a time, on the network's device."""
    device = next(network.parameters()).device
    parts = [network(some.to(device)) for some in pixels.split(images_at_once(pixels.shape[-1], BATCH))]
    return Output(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def deal(method: AggMatch) -> Memory:
    """The queue dealt to subsets, always in the same way."""
    return method.deal(torch.Generator(method.queue.fill.device).manual_seed(SEED))
