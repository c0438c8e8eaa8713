import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from aggmatch.data import DataSettings, draw_split, load
from aggmatch.data.builtin.stl10 import ARCHIVE
from aggmatch.data.images import UNKNOWN
from aggmatch.errors import AggMatchError
from aggmatch.models import build_network
from aggmatch.models.wide_resnet import WideResNet

FOLDS = ["0 1 2 3 4 5 6 7 8 9", "10 11 12 13 14 15 16 17 18 19"]


def stored(count: int, seed: int) -> tuple[np.ndarray, bytes]:
    """Images (N, 3, 96, 96), and their bytes with every channel column by column."""
    images = np.random.default_rng(seed).integers(0, 256, (count, 3, 96, 96), dtype=np.uint8)
    return images, images.transpose(0, 1, 3, 2).tobytes()


@pytest.fixture
def files() -> dict[str, bytes]:
    labels = bytes(number % 10 + 1 for number in range(30))
    return {
        "train_X.bin": stored(30, 0)[1],
        "train_y.bin": labels,
        "unlabeled_X.bin": stored(7, 1)[1],
        "test_X.bin": stored(10, 2)[1],
        "test_y.bin": labels[:10],
        "fold_indices.txt": "\n".join(FOLDS).encode() + b"\n",
    }


@pytest.fixture
def unpacked(tmp_path, files) -> Path:
    (tmp_path / "stl10_binary").mkdir()
    for name, content in files.items():
        (tmp_path / "stl10_binary" / name).write_bytes(content)
    return tmp_path


def pack(folder: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(folder / ARCHIVE.file, "w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"stl10_binary/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def test_official_files_are_read_packed_and_unpacked(unpacked, files, tmp_path_factory):
    data = load("stl10", unpacked)
    assert data.train.pixels.shape == (37, 3, 96, 96)
    assert np.array_equal(data.train.pixels[:30].numpy(), stored(30, 0)[0])
    assert data.train.labels.tolist() == [number % 10 for number in range(30)] + [UNKNOWN] * 7
    assert len(data.test) == 10
    packed = tmp_path_factory.mktemp("packed")
    pack(packed, files)
    assert load("stl10", packed).fingerprint == data.fingerprint
    assert load("stl10", packed).folds == data.folds


@pytest.mark.parametrize("fold", [0, 1])
def test_an_official_fold_is_used_if_as_many_labels_are_asked_for(unpacked, fold):
    data = load("stl10", unpacked)
    split = draw_split(data, DataSettings(name="stl10", labels=10, fold=fold))
    assert sorted(split.labeled.tolist()) == list(range(10 * fold, 10 * fold + 10))
    assert torch.equal(split.labels, data.train.labels[split.labeled])
    assert len(split.unlabeled) == 37, "labelled and unlabelled images"


def test_other_numbers_of_labels_and_later_folds_are_drawn_at_random(unpacked):
    data = load("stl10", unpacked)
    assert len(draw_split(data, DataSettings(name="stl10", labels=20)).labeled) == 20
    drawn = draw_split(data, DataSettings(name="stl10", labels=10, fold=2)).labeled
    assert sorted(drawn.tolist()) not in [list(range(10)), list(range(10, 20))]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train_X.bin", b"x" * 100),
        ("train_y.bin", b"\x01"),
        ("train_y.bin", b"\x0b" * 30),
        ("unlabeled_X.bin", b""),
        ("fold_indices.txt", b"1 2 x\n"),
    ],
)
def test_a_corrupt_file_is_named(unpacked, name, content):
    (unpacked / "stl10_binary" / name).write_bytes(content)
    with pytest.raises(AggMatchError, match=name.replace(".", r"\.")):
        load("stl10", unpacked)


def test_an_archive_without_a_file_is_named(tmp_path, files):
    pack(tmp_path, {name: content for name, content in files.items() if name != "test_y.bin"})
    with pytest.raises(AggMatchError, match=r"test_y\.bin"):
        load("stl10", tmp_path)


def test_wrn_37_2_halves_the_image_four_times_and_has_256_features():
    network = build_network("wrn-37-2", channels=3, classes=10)
    shapes = []
    backbone = network.backbone
    assert isinstance(backbone, WideResNet)
    for block in backbone.each_block():
        block.register_forward_hook(lambda _module, _input, output: shapes.append(tuple(output.shape[1:])))
    assert network(torch.zeros(2, 3, 96, 96, dtype=torch.uint8)).feature.shape == (2, 256)
    assert shapes[::4] == [(32, 48, 48), (64, 24, 24), (128, 12, 12), (256, 6, 6)]
    assert len(shapes) == 16


def test_an_archive_in_any_order_gives_the_same_images(unpacked, files, tmp_path_factory):
    packed = tmp_path_factory.mktemp("reversed")
    pack(packed, dict(reversed(files.items())))
    assert load("stl10", packed).fingerprint == load("stl10", unpacked).fingerprint


def test_an_archive_that_is_cut_short_is_named(tmp_path, files):
    pack(tmp_path, files)
    archive = tmp_path / ARCHIVE.file
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    with pytest.raises(AggMatchError, match=ARCHIVE.file.replace(".", r"\.")):
        load("stl10", tmp_path)
