"""The images to label and review: with their features, and with the predictions of a run if there is one.

Shapes: N images, D features, L labelled images, Y classes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from aggmatch.config import Changes
from aggmatch.data import DataSet, Images, Split, is_own_images
from aggmatch.data.images import UNKNOWN
from aggmatch.data.own.images import read_unsorted
from aggmatch.data.registry import has_test_folder
from aggmatch.data.splits import read_content
from aggmatch.errors import AggMatchError
from aggmatch.evaluation import predict
from aggmatch.inference.model import Snapshot, TrainedModel, learned_features
from aggmatch.models.pretrained import HINT
from aggmatch.runs.folder import RunFolder
from aggmatch.settings import RunSettings
from aggmatch.training.inputs import pretrained_store, store_of


@dataclass(frozen=True, eq=False)
class Pool:
    """Training images with what is known about them.

    Example: `suggest(pool.features, pool.labeled.tolist(), 20, probs_NY=pool.probs)`.
    """

    settings: RunSettings
    images: Images
    classes: tuple[str, ...]
    """Names of the Y classes."""
    labeled: Tensor
    """Positions of the images with a label, (L,)."""
    labels: Tensor
    """Their labels, (L,)."""
    features: Tensor
    """v, (N, D)."""
    probs: Tensor | None = None
    """Class probabilities by a run, (N, Y); None before any training."""
    tested: Images | None = None
    """Labelled images that a run keeps for testing, if no folder tells which they are."""

    def known(self) -> dict[str, str]:
        """Return name → class of all images that have a label, those kept for testing included."""
        found = {
            self.images.call(position): self.classes[label]
            for position, label in zip(self.labeled.tolist(), self.labels.tolist(), strict=True)
        }
        if self.tested is not None:
            labels = self.tested.labels.tolist()
            found |= {self.tested.call(position): self.classes[label] for position, label in enumerate(labels)}
        return found


def pool_of_folder(settings: RunSettings) -> Pool:
    """Read the images of a folder with features of the pretrained backbone, before any training.

    settings: as `resolve` makes them for the folder. Raises an `AggMatchError` if no pretrained weights are installed.
    """
    data, runtime = settings.data, settings.runtime
    if settings.train.backbone == "scratch":
        raise AggMatchError(
            f"Before any training, images are compared by features of a pretrained network, and none is chosen. {HINT} "
            f"Or train first, and name the run instead of the folder."
        )
    table = Path(data.labels_file) if data.labels_file else None
    images, classes = read_unsorted(Path(data.name), data.side, labels_file=table, cache_dir=runtime.cache_dir)
    if not len(images):
        raise AggMatchError(f"{data.name} has no image that can be read.")
    labeled = (images.labels != UNKNOWN).nonzero()[:, 0]
    features = pretrained_store(settings, images.pixels).plain(images.pixels)
    return Pool(settings, images, classes, labeled, images.labels[labeled], features.float())


def pool_of_run(
    run: Path,
    changes: Changes = (),
    *,
    labels_file: Path | None = None,
    allow: Iterable[str] = (),
    download: bool = False,
    early: bool = False,
) -> Pool:
    """Read the training images of a run with features and predictions of its model.

    run: its folder. changes: settings of section `runtime`. labels_file: a table with the labels as they are now; the
    images of a folder may have got more labels since the run. allow: code that the folder may name. download: whether
    missing files of the data set may be fetched. early: whether to take the features of a network that learned from
    scratch from its first snapshot, before it memorised its labels; see `early_features`. Those of a fine-tuned network
    are of the pretrained backbone, on which choices and doubts were measured.

    Example: `pool_of_run(Path("runs/mine")).probs`.
    """
    model, folder = TrainedModel.load(run, changes, allow=allow), RunFolder(run)
    settings, runtime = model.settings, model.settings.runtime
    if labels_file is not None:
        settings = replace(settings, data=replace(settings.data, labels_file=str(labels_file.resolve())))
    if is_own_images(settings.data.name) and read_content(folder.split).get("test_images"):
        settings = replace(settings, data=replace(settings.data, test_images=str(folder.split)))
    data = settings.load_data(download=download)
    network, pixels = model.network, data.train.pixels
    if network.frozen is not None:
        inputs = features = store_of(network, settings, mirror=data.mirror).plain(pixels)
    elif settings.train.backbone == "finetune":
        store = pretrained_store(settings, pixels, classes=len(model.classes), mirror=data.mirror)
        inputs, features = pixels, store.plain(pixels)
    elif early:
        inputs, features = pixels, early_features(folder, settings, pixels)
    else:
        inputs, features = pixels, learned_features(network, pixels, runtime.threads)
    probs = predict(model.method, network, inputs, threads=runtime.threads)
    labeled, labels = current_labels(data, folder)
    tested = None if has_test_folder(data.name) or not data.test.names else data.test
    return Pool(
        settings, data.train, data.classes, labeled, labels, features.float(), aligned(probs, model, data), tested
    )


def early_features(folder: RunFolder, settings: RunSettings, pixels: Tensor) -> Tensor:
    """Return the features of the averaged network at the first snapshot of a run, (N, D).

    A network first learns what many images have in common, and only later single wrong labels. Its last features then
    put an image next to those of its wrong class: measured on digits, no wrong label could be found with them.
    """
    first = min(folder.snapshots.glob("step-*.safetensors"), default=None)
    if first is None:
        raise AggMatchError(
            f"{folder.path} has no snapshots, and its last network has memorised all labels. Train again with "
            f"runtime.snapshots=[0.1]."
        )
    return learned_features(Snapshot.load(first, settings).average, pixels, settings.runtime.threads)


def current_labels(data: DataSet, folder: RunFolder) -> tuple[Tensor, Tensor]:
    """Return the labelled images and their labels: all that a folder of images has now, or else those of the run."""
    if is_own_images(data.name) and read_content(folder.split).get("fingerprint") != data.fingerprint:
        labeled = (data.train.labels != UNKNOWN).nonzero()[:, 0]
        return labeled, data.train.labels[labeled]
    split = Split.read(folder.split, data)
    return split.labeled, split.labels


def aligned(probs_NY: Tensor, model: TrainedModel, data: DataSet) -> Tensor:
    """Return the probabilities in the order of the classes of the data set, which may have got more since the run."""
    if model.classes == data.classes:
        return probs_NY
    found = torch.zeros(len(probs_NY), len(data.classes))
    for number, name in enumerate(model.classes):
        if name in data.classes:
            found[:, data.classes.index(name)] = probs_NY[:, number]
    return found
