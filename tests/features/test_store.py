"""Features of a frozen backbone: which views they belong to, and when they are computed again."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aggmatch.augment.settings import ViewSettings
from aggmatch.augment.views import Augmenter
from aggmatch.features.store import FeatureStore
from aggmatch.models import Network, build_network
from aggmatch.models.network import Standardize
from aggmatch.models.pretrained import freeze

IMAGES = torch.randint(0, 256, (50, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


class Counting(nn.Module):
    """A backbone that counts the distinct images it has seen; its features are mean and brightest pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x.unique(dim=0))
        return torch.stack([x.mean((1, 2, 3)), x.amax((1, 2, 3))], 1) * self.scale


def make_store(folder: Path, backbone: nn.Module, settings: ViewSettings | None = None) -> FeatureStore:
    network = Network(Standardize(2), 3, 3, frozen=backbone)
    return FeatureStore(network, Augmenter(settings or ViewSettings(), mirror=True), folder)


def test_features_have_one_row_per_image_and_view(tmp_path: Path):
    found = make_store(tmp_path, Counting()).views(IMAGES, {"plain": 1, "weak": 2, "strong": 3})
    assert {name: tuple(values.shape) for name, values in found.items()} == {
        "plain": (50, 1, 2),
        "weak": (50, 2, 2),
        "strong": (50, 3, 2),
    }
    assert not torch.equal(found["strong"][:, 0], found["strong"][:, 1])


def test_plain_features_are_those_of_the_images_themselves(tmp_path: Path):
    store = make_store(tmp_path, Counting())
    torch.testing.assert_close(store.plain(IMAGES), store.network.embed(IMAGES).half())


def test_features_are_computed_once(tmp_path: Path):
    first = make_store(tmp_path, Counting()).views(IMAGES, {"weak": 2})["weak"]
    backbone = Counting()
    store = make_store(tmp_path, backbone)
    assert torch.equal(store.views(IMAGES, {"weak": 2})["weak"], first)
    assert backbone.seen == 0
    store = make_store(tmp_path, backbone, ViewSettings(cached=3, feature_dropout=0.1))
    store.views(IMAGES, {"weak": 3})  # only the third view is new
    assert backbone.seen == len(IMAGES)


def test_neither_order_nor_duplicates_of_images_need_new_features(tmp_path: Path):
    first = make_store(tmp_path, Counting()).views(IMAGES, {"strong": 1})["strong"]
    backbone, order = Counting(), torch.tensor([*range(49, -1, -1), 7])
    again = make_store(tmp_path, backbone).views(IMAGES[order], {"strong": 1})["strong"]
    assert backbone.seen == 0
    assert torch.equal(again, first[order])


def test_the_same_images_get_the_same_views_without_a_cache(tmp_path: Path):
    first, second = (make_store(tmp_path / name, Counting()).views(IMAGES, {"strong": 2})["strong"] for name in "ab")
    assert torch.equal(first, second)


@pytest.mark.parametrize("change", ["weights", "views"])
def test_whatever_changes_the_features_has_an_entry_of_its_own(tmp_path: Path, change: str):
    make_store(tmp_path, Counting()).views(IMAGES, {"weak": 1})
    backbone, settings = Counting(), ViewSettings()
    if change == "weights":
        nn.init.constant_(backbone.scale, 2)
    else:
        settings = ViewSettings(shift=0.25)
    make_store(tmp_path, backbone, settings).views(IMAGES, {"weak": 1})
    assert backbone.seen == len(IMAGES)


def test_another_class_with_equal_weights_has_features_of_its_own(tmp_path: Path):
    class Doubled(Counting):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    first = make_store(tmp_path, Counting()).plain(IMAGES)
    torch.testing.assert_close(make_store(tmp_path, Doubled()).plain(IMAGES), 2 * first)


def test_averaged_features_are_means_over_the_image_and_weak_views(tmp_path: Path):
    store = make_store(tmp_path, Counting())
    views = store.views(IMAGES, {"plain": 1, "weak": 2})
    expected = (views["plain"][:, 0].float() + views["weak"].float().sum(1)) / 3
    torch.testing.assert_close(store.averaged(IMAGES), expected)


def test_only_new_images_are_computed(tmp_path: Path):
    make_store(tmp_path, Counting()).views(IMAGES[:30], {"weak": 2})
    backbone = Counting()
    store = make_store(tmp_path, backbone)
    grown = store.views(IMAGES, {"weak": 2})["weak"]
    assert backbone.seen == 2 * 20
    fewer = store.views(IMAGES[10:40], {"weak": 2})["weak"]
    assert backbone.seen == 2 * 20
    assert torch.equal(fewer, grown[10:40])
    changed = IMAGES.clone()
    changed[3, 0, 0, 0] += 1
    store.views(changed, {"weak": 2})
    assert backbone.seen == 2 * 21


def test_images_are_read_batch_by_batch(tmp_path: Path):
    """They may be a map of a file that is larger than the memory."""
    read = []

    class Watched(Tensor):
        def __getitem__(self, index: Any) -> Tensor:
            part: Tensor = super().__getitem__(index)
            read.append(len(part))
            return part.as_subclass(Tensor)

    images = torch.randint(0, 256, (450, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    features = make_store(tmp_path / "a", Counting()).plain(images.as_subclass(Watched))
    assert sorted(read) == [50, 200, 200]
    assert torch.equal(features, make_store(tmp_path / "b", Counting()).plain(images))


def test_features_do_not_depend_on_what_is_cached(tmp_path: Path):
    counts = {"plain": 1, "weak": 1, "strong": 2}
    for count in (7, 20, 50):
        grown = make_store(tmp_path / "a", Counting()).views(IMAGES[:count], counts)
    at_once = make_store(tmp_path / "b", Counting()).views(IMAGES, counts)
    assert all(torch.equal(grown[name], at_once[name]) for name in counts)


def test_features_of_a_real_network_do_not_depend_on_the_other_images(tmp_path: Path):
    network = build_network("efficientnet-lite0", channels=3, classes=3, use="frozen", side=32)
    assert network.frozen is not None
    freeze(network.frozen)
    augment, images = Augmenter(ViewSettings(), mirror=True), torch.cat([IMAGES, IMAGES.flip(3)]).repeat(1, 1, 4, 4)
    together = FeatureStore(network, augment, tmp_path / "a").views(images, {"strong": 1})["strong"]
    alone = FeatureStore(network, augment, tmp_path / "b").views(images[70:71], {"strong": 1})["strong"]
    assert torch.equal(alone, together[70:71])


@pytest.mark.parametrize("number", [0, 1])
def test_a_corrupt_entry_is_computed_again(tmp_path: Path, number: int):
    first = make_store(tmp_path, Counting()).plain(IMAGES)
    entry = sorted((tmp_path / "features").iterdir())[number]  # the index and the features
    entry.write_bytes(entry.read_bytes()[:-40])
    assert torch.equal(make_store(tmp_path, Counting()).plain(IMAGES), first)


def test_computing_features_leaves_the_number_of_threads_unchanged(tmp_path: Path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        make_store(tmp_path, Counting()).plain(IMAGES)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_progress_counts_the_views_of_all_images(tmp_path: Path):
    seen: list[tuple[int, int]] = []
    store = make_store(tmp_path, Counting())
    store.views(IMAGES, {"plain": 1, "weak": 2}, progress=lambda done, total: seen.append((done, total)))
    assert {total for _, total in seen} == {150}
    assert max(done for done, _ in seen) == 150
