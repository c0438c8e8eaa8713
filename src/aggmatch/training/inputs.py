"""What the network of a run takes: views of images, made in every step, or cached features of views.

Shapes: B images of a batch, N training images, V views, D features.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from aggmatch.augment.views import Augmenter
from aggmatch.data import DataSet, Images, Split
from aggmatch.data.rows import Rows, copy_rows, rows_of
from aggmatch.devices import choose_device, computes_in_bfloat16
from aggmatch.features.store import PLAIN, Features, FeatureStore
from aggmatch.methods import TrainingImages, Views
from aggmatch.models import Network, build_network
from aggmatch.models.network import Standardize
from aggmatch.models.registry import load_backbone
from aggmatch.settings import RunSettings
from aggmatch.training.place import Place


class Inputs(Protocol):
    """The inputs of a run: views for training, and labelled examples for evaluation."""

    @property
    def plain(self) -> TrainingImages:
        """The training images themselves, or their features: N rows, which an index brings to the training device."""

    @property
    def rows(self) -> Rows | None:
        """The training images, if they are not on the device: the batches of a run are then read ahead of its steps."""

    @property
    def test(self) -> Images | Features:
        """Test examples with their true classes."""

    @property
    def labeled(self) -> Images | Features:
        """Labelled training examples with their given labels."""

    def views(
        self, names: Sequence[str], index_B: Tensor, generator: torch.Generator, images_B: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return the named views of the training images at these positions, each with B rows.

        images_B: these images, if they were read ahead; otherwise they are gathered.
        """


class ImageInputs:
    """Images on the training device, or elsewhere; every step makes new views of them."""

    def __init__(self, data: DataSet, split: Split, augment: Augmenter, device: torch.device, place: Place) -> None:
        pixels = data.train.pixels
        self.augment = augment
        self.rows = None if place == "device" else rows_of(pixels)
        self.plain: TrainingImages = pixels.to(device) if self.rows is None else DistantImages(self.rows, device)
        self.test = data.test
        self.labeled = Images(copy_rows([pixels], split.labeled.tolist()), split.labels)

    def views(
        self, names: Sequence[str], index_B: Tensor, generator: torch.Generator, images_B: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return the named views, each (B, C, H, W) uint8."""
        return tuple(
            self.augment(name, self.plain[index_B] if images_B is None else images_B, generator) for name in names
        )


class DistantImages:
    """Training images that are not on the training device; an index brings some of them there.

    Example: `DistantImages(rows_of(pixels), device)[torch.tensor([3, 5])]` has shape (2, C, H, W).
    """

    def __init__(self, rows: Rows, device: torch.device) -> None:
        self.rows, self.device, self.shape = rows, device, torch.Size(rows.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Tensor) -> Tensor:
        images = torch.empty((len(index), *self.shape[1:]), dtype=torch.uint8)
        self.rows.read(index.cpu().numpy(), images.numpy())
        return images.to(self.device)


class FeatureInputs:
    """Features of views by a frozen backbone, computed once; every step draws one of the cached views of each image.

    Views other than `plain` and `weak` also lose a random part of their features, which become their mean: a cached
    view is seen many times, and dropout makes it differ each time.
    """

    rows = None
    store: FeatureStore
    """Where the features come from."""

    def __init__(self, store: FeatureStore, data: DataSet, split: Split, views: Views) -> None:
        self.store, network, settings = store, store.network, store.augment.settings
        count, names = settings.cached, {*views.labeled, *views.unlabeled}
        counts = {PLAIN: 1} | {name: 1 if name == PLAIN else count for name in sorted(names)}
        cached = store.views(data.train.pixels, counts)
        plain = cached[PLAIN][:, 0]
        assert isinstance(network.backbone, Standardize), "networks on frozen features standardise them first"
        network.backbone.fit(plain)
        self.mean, self.dropout = network.backbone.mean, settings.feature_dropout
        self.cached = {name: cached[name].to(store.device) for name in names}
        self.plain = plain.float().to(store.device)
        self.test = Features(store.plain(data.test.pixels) if len(data.test) else plain[:0], data.test.labels)
        self.labeled = Features(plain[split.labeled], split.labels)

    def views(
        self, names: Sequence[str], index_B: Tensor, generator: torch.Generator, images_B: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return features of the named views, each (B, D) float32."""
        return tuple(self.draw(name, index_B, generator) for name in names)

    def draw(self, name: str, index_B: Tensor, generator: torch.Generator) -> Tensor:
        """Return one of the cached views of each image, with dropout for strong ones."""
        cached_NVD, device = self.cached[name], generator.device
        number_B = torch.randint(cached_NVD.shape[1], index_B.shape, generator=generator, device=device)
        feature_BD = cached_NVD[index_B, number_B].float()
        if name in (PLAIN, "weak") or not self.dropout:
            return feature_BD
        kept_BD = torch.rand(feature_BD.shape, generator=generator, device=device) >= self.dropout
        return self.mean + (feature_BD - self.mean) * kept_BD / (1 - self.dropout)


def pretrained_store(
    settings: RunSettings,
    pixels: Tensor,
    *,
    classes: int = 2,
    mirror: bool = True,
    device: torch.device | None = None,
) -> FeatureStore:
    """Return the store of features of the pretrained backbone that the settings name, before any fine-tuning.

    pixels: training images. classes: Y, which a backbone of your own may depend on. mirror: whether weak views may be
    mirrored. device: where it computes; None for the one of the settings.
    """
    model, device = settings.model, device or choose_device(settings.runtime.device)
    network = build_network(model.name, channels=pixels.shape[1], classes=classes, use="frozen", side=model.side)
    load_backbone(network, "frozen", model)
    network.normalize_by(pixels)
    network.mixed = computes_in_bfloat16(settings.train.precision, device)  # as in a run, which finds the features
    return store_of(network.to(device), settings, mirror=mirror)


def store_of(network: Network, settings: RunSettings, *, mirror: bool) -> FeatureStore:
    """Return the store of features of a network's frozen backbone."""
    return FeatureStore(network, Augmenter(settings.views, mirror=mirror), settings.runtime.cache_dir)
