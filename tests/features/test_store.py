"""Features of a frozen backbone: which views they belong to, and when they are computed again."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from aggmatch.augment.settings import ViewSettings
from aggmatch.augment.views import Augmenter
from aggmatch.features.store import FeatureStore
from aggmatch.models import Network
from aggmatch.models.network import Standardize

IMAGES = torch.randint(0, 256, (50, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


class Counting(nn.Module):
    """A backbone that counts the images it has seen; its features are mean and brightest pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
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


@pytest.mark.parametrize("change", ["weights", "views", "images"])
def test_whatever_changes_the_features_has_an_entry_of_its_own(tmp_path: Path, change: str):
    make_store(tmp_path, Counting()).views(IMAGES, {"strong": 1})
    backbone, settings, images = Counting(), ViewSettings(), IMAGES
    if change == "weights":
        nn.init.constant_(backbone.scale, 2)
    elif change == "views":
        settings = ViewSettings(cutout=0.0)
    else:
        images = IMAGES.clone()
        images[3, 0, 0, 0] += 1
    make_store(tmp_path, backbone, settings).views(images, {"strong": 1})
    assert backbone.seen == len(images)


def test_a_corrupt_entry_is_computed_again(tmp_path: Path):
    first = make_store(tmp_path, Counting()).plain(IMAGES)
    (entry,) = (tmp_path / "features").iterdir()
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
