"""Pseudo labels of training images by a snapshot: the network's own prediction, and what the method makes of it.

The networks predict plain images with running BatchNorm statistics, while training saw weak views and the statistics of
its batches. The same snapshot always gives the same pseudo labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from aggmatch.data import DataSet, Images, Split
from aggmatch.data.images import UNKNOWN
from aggmatch.errors import AggMatchError
from aggmatch.evaluation import evaluate, evaluating
from aggmatch.functional import Aggregate
from aggmatch.inference import Snapshot
from aggmatch.methods import load_method
from aggmatch.models import Network, Output, images_at_once
from aggmatch.runs.stats import first_of_groups
from aggmatch.runs.stored import StoredRun

IMAGES = 2000
"""Largest number of unlabelled images to use; they represent all."""
BATCH = 500
"""Images at a time."""


@dataclass(frozen=True, eq=False)
class PseudoLabeled:
    """The classes that a snapshot gives to training images. Tensors are on the CPU."""

    step: int
    index: Tensor
    """Positions among the training images, (N,)."""
    truth: Tensor
    """(N,)."""
    own: Tensor
    """p, the online network's own prediction, (N, Y)."""
    aggregated: Aggregate | None
    """p̄, votes and c̄ if the method explains its pseudo labels."""
    refines: bool
    """Whether the method's pseudo label is p̄; otherwise it is p."""
    feature: Tensor | None = None
    """v, the online network's features, (N, D), if the method explains its pseudo labels."""

    @property
    def probs(self) -> Tensor:
        """The distribution that the method takes as pseudo label, (N, Y)."""
        return self.aggregated.probs if self.aggregated and self.refines else self.own

    @property
    def confidence(self) -> Tensor:
        """The consensus c̄, or without votes the largest probability, (N,)."""
        return self.aggregated.confidence if self.aggregated else self.own.amax(1)

    @property
    def right(self) -> Tensor:
        """Whether the pseudo label is the true class, (N,)."""
        return self.probs.argmax(1) == self.truth


def explains(run: StoredRun) -> bool:
    """Whether the run's method can explain its pseudo labels."""
    return load_method(run.settings.method_name).explains


def with_snapshots(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """The first run of each group, if it has snapshots."""
    return [run for run in first_of_groups(runs) if run.snapshots]


def explained_runs(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """The first run of each group, if it has snapshots and can explain its pseudo labels."""
    return [run for run in with_snapshots(runs) if explains(run)]


def no_snapshots(run: StoredRun) -> str:
    """Why a run has no snapshot, in words that follow its name."""
    if not (run.settings.runtime.snapshots or run.settings.runtime.snapshot_steps):
        return "kept no snapshots (runtime.snapshots is empty)"
    return "lost its snapshots (its folder has none)" if run.finished else "has no snapshots yet"


def unlabeled_images(data: DataSet, split: Split, *, known: bool) -> Tensor:
    """Training images without a given label, at most `IMAGES`, evenly spaced, (N,).

    known: leave out images whose true class is unknown.
    """
    usable = ~torch.isin(split.unlabeled, split.labeled)
    if known:
        usable &= data.train.labels[split.unlabeled] != UNKNOWN
    return evenly(split.unlabeled[usable], IMAGES)


def knows_all_classes(run: StoredRun) -> bool:
    """Whether the true class of every unlabelled image is known."""
    return bool((run.data().train.labels[run.split().unlabeled] != UNKNOWN).all())


def evenly(values: Tensor, count: int) -> Tensor:
    """At most `count` of the values, evenly spaced, in order."""
    count = min(count, len(values))
    return values[torch.arange(count) * len(values) // max(count, 1)]


def pseudo_labels_at(run: StoredRun, path: Path, *, known: bool = True) -> PseudoLabeled:
    """Pseudo labels of a run's unlabelled images by one of its snapshots; cached with the run.

    known: leave out images whose true class is unknown.
    """

    def compute() -> PseudoLabeled:
        data, split = run.data(), run.split()
        index = unlabeled_images(data, split, known=known)
        if not len(index):
            if known and len(split.unlabeled) > len(split.labeled):
                raise AggMatchError(
                    f"Nobody knows the true classes of the unlabelled images of {run.data_name}, so pseudo labels "
                    f"cannot be judged."
                )
            raise AggMatchError(f"{data.name} has no unlabelled images whose pseudo labels could be shown.")
        return pseudo_labels(Snapshot.load(path, run.settings), data, split, index)

    return run.once(("pseudo labels", path, known), compute)


@torch.no_grad()
def pseudo_labels(snapshot: Snapshot, data: DataSet, split: Split, index: Tensor) -> PseudoLabeled:
    """Pseudo labels of the training images at `index`, (N,), by a snapshot."""
    images = Images(data.train.pixels[index], data.train.labels[index])
    explainer = snapshot.method.explainer()
    if explainer is None:
        labeled = Images(data.train.pixels[split.labeled], split.labels)
        own = evaluate(snapshot.method, snapshot.online, images, labeled).probs
        return PseudoLabeled(snapshot.step, index, images.labels, own, None, refines=False)
    output = run_network(snapshot.online, images.pixels)
    own = output.logits.softmax(-1)
    batches = zip(output.feature.split(BATCH), own.split(BATCH), strict=True)
    parts = [explainer.refine(feature, probs) for feature, probs in batches]
    aggregated = Aggregate(*(torch.cat(tensors).cpu() for tensors in zip(*parts, strict=True)))
    feature = output.feature.cpu()
    return PseudoLabeled(snapshot.step, index, images.labels, own.cpu(), aggregated, explainer.refines, feature)


def run_network(network: Network, pixels: Tensor) -> Output:
    """Features and logits of images (N, C, H, W), computed a batch at a time, on the network's device."""
    with evaluating(network, 0) as device:
        parts = [network(some.to(device)) for some in pixels.split(images_at_once(pixels.shape[-1], BATCH))]
        return Output(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


# Before and after refinement --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Changes:
    """Positions of pseudo labels by what refinement did to them; the largest change of the true class comes first."""

    corrected: Tensor
    """Wrong before, right after."""
    spoiled: Tensor
    """Right before, wrong after."""
    kept: Tensor
    """The same class before and after, in order."""

    @property
    def count(self) -> int:
        """Number of labels that became right or wrong."""
        return len(self.corrected) + len(self.spoiled)


def changes(own_NY: Tensor, refined_NY: Tensor, truth_N: Tensor) -> Changes:
    """Sort pseudo labels by what refinement did to them."""
    before_N, after_N = own_NY.argmax(1), refined_NY.argmax(1)
    gain_N = (refined_NY - own_NY).gather(1, truth_N[:, None]).squeeze(1)
    order_N = gain_N.argsort(descending=True, stable=True)
    corrected_N = (before_N != truth_N) & (after_N == truth_N)
    spoiled_N = (before_N == truth_N) & (after_N != truth_N)
    return Changes(
        corrected=order_N[corrected_N[order_N]],
        spoiled=order_N.flip(0)[spoiled_N[order_N.flip(0)]],
        kept=(before_N == after_N).nonzero().flatten(),
    )


def changes_of(run: StoredRun) -> dict[Path, Changes]:
    """Changes by refinement at each snapshot of a run that explains its pseudo labels."""
    found = {path: pseudo_labels_at(run, path) for path in run.snapshots}
    return {
        path: changes(each.own, each.aggregated.probs, each.truth) for path, each in found.items() if each.aggregated
    }


def most_changed(by_snapshot: dict[Path, Changes]) -> Path:
    """The snapshot at which refinement corrected or spoiled most labels; the latest of equals."""
    return max(reversed(by_snapshot), key=lambda path: by_snapshot[path].count)
