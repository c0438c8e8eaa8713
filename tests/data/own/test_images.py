"""Images of your own: how a folder, a .zip or an .npz file becomes a data set."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.photos import paint

from aggmatch.data import load, make_split
from aggmatch.data.own.folder import list_labeled
from aggmatch.data.own.images import (
    held_out,
    image_files,
    original_file,
    read_folder,
    read_labeled,
    read_own_images,
    read_unsorted,
)
from aggmatch.data.splits import DataSettings
from aggmatch.errors import AggMatchError
from aggmatch.validate import InvalidValue


@pytest.fixture
def flowers(tmp_path: Path) -> Path:
    """Ten red roses, five yellow tulips and four images without a label."""
    for k in range(10):
        paint(tmp_path / f"flowers/rose/{k}.png", (200, k, 0))
    for k in range(5):
        paint(tmp_path / f"flowers/tulip/deep/er/{k}.jpg", (220, 200, k))
    for k in range(4):
        paint(tmp_path / f"flowers/unlabeled/{k}.bmp", (0, 0, 10 * k))
    return tmp_path / "flowers"


# Data sets ---------------------------------------------------------------------------------------------------------


def test_subfolders_are_classes_and_a_fifth_is_held_out(flowers):
    data = read_folder(flowers, 16, 0.2)
    assert data.classes == ("rose", "tulip")
    assert data.train.pixels.shape == (8 + 4 + 4, 3, 16, 16)
    assert torch.bincount(data.train.labels + 1).tolist() == [4, 8, 4], "unlabelled, roses, tulips"
    assert torch.bincount(data.test.labels).tolist() == [2, 1]
    red, green = data.test.pixels[:, 0].float().mean((1, 2)), data.test.pixels[:, 1].float().mean((1, 2))
    assert (red > 190).all()
    assert torch.equal(green > 100, data.test.labels == 1), "labels belong to their images"


def test_held_out_files_hardly_change_when_images_are_added(flowers):
    def chosen() -> set[Path]:
        items = list_labeled(flowers, ["rose", "tulip"])
        names = [os.fsencode(item.file.relative_to(flowers)) for item in items]
        return {items[position].file for position in held_out([item.label for item in items], names, 0.2)}

    before = chosen()
    for k in range(10, 15):
        paint(flowers / f"rose/{k}.png")
    after = chosen()
    assert len(before) == 3
    assert len(after) == 4
    assert len(before & after) >= 2


@pytest.mark.parametrize("name", ["test", "Test"])
def test_a_test_folder_is_used_and_nothing_is_held_out(flowers, name):
    paint(flowers / f"{name}/tulip/x.png", (220, 200, 9))
    assert read_folder(flowers, 16, 0.2).test.labels.tolist() == [1]
    paint(flowers / f"{name}/rose/x.png", (200, 9, 9))
    data = read_folder(flowers, 16, 0.2)
    assert data.classes == ("rose", "tulip"), "`test` is not a class"
    assert data.test.labels.tolist() == [0, 1]
    assert torch.bincount(data.train.labels + 1).tolist() == [4, 10, 5]


def test_training_images_may_lie_in_train(flowers, tmp_path):
    flowers.rename(tmp_path / "train")
    data = read_folder(tmp_path, 16, 0.2)
    assert data.classes == ("rose", "tulip")
    assert len(data.train) == 16


def test_unlabelled_images_may_lie_next_to_train(flowers, tmp_path):
    flowers.rename(tmp_path / "train")
    (tmp_path / "train/unlabeled").rename(tmp_path / "Unlabelled")
    assert len(read_folder(tmp_path, 16, 0.2).train) == 16


def test_classes_both_in_train_and_next_to_it_fail(flowers, tmp_path):
    flowers.rename(tmp_path / "train")
    paint(tmp_path / "daisy/1.png")
    with pytest.raises(AggMatchError, match="has both train and daisy: put all classes into .*train, or none of them."):
        read_folder(tmp_path, 16, 0.2)


def test_an_unreadable_file_does_not_become_a_test_image(flowers):
    held = [name for name in read_folder(flowers, 16, 0.2).test.names if name.startswith("tulip")]
    (flowers / held[0]).write_bytes(b"")
    with pytest.warns(UserWarning, match="1 of 19 files cannot be read"):
        data = read_folder(flowers, 16, 0.2)
    assert len(data.test) == 3
    assert held[0] not in data.test.names


def test_an_empty_test_folder_is_ignored(flowers):
    before = read_folder(flowers, 16, 0.2)
    (flowers / "test/rose").mkdir(parents=True)
    assert read_folder(flowers, 16, 0.2).test.names == before.test.names


def test_a_warning_counts_images_outside_of_class_folders(flowers):
    paint(flowers / "loose.png")
    paint(flowers / "another.JPG")
    (flowers / "._another.JPG").write_bytes(b"written by macOS on other disks")
    with pytest.warns(UserWarning, match="Left out: 2 images directly in .*flowers, without a class"):
        data = read_folder(flowers, 16, 0.2)
    assert len(data.train) == 16


@pytest.mark.parametrize("name", ["val", "Valid", "validation"])
def test_validation_images_are_test_images_if_there_is_no_test_folder(flowers, name):
    paint(flowers / name / "rose/1.png")
    paint(flowers / name / "tulip/1.png")
    assert len(read_folder(flowers, 16, 0.2).test) == 2
    paint(flowers / "test/rose/1.png")
    paint(flowers / "test/tulip/1.png")
    paint(flowers / "test/tulip/2.png")
    data = read_folder(flowers, 16, 0.2)
    assert (data.classes, len(data.test)) == (("rose", "tulip"), 3)


def test_image_names_are_file_names(flowers):
    data = read_folder(flowers, 16, 0.2)
    assert {"unlabeled/0.bmp", "tulip/deep/er/0.jpg"} <= {*data.train.names, *data.test.names}
    assert data.train.names[-1] == "unlabeled/3.bmp"
    assert len(set(data.train.names + data.test.names)) == 19


def test_all_labels_are_used_and_every_image_is_also_unlabelled(flowers):
    data = load(str(flowers), Path("data"), side=16)
    split = make_split(data, DataSettings(name=str(flowers), labels=None))
    assert sorted(split.labeled.tolist()) == (data.train.labels >= 0).nonzero().flatten().tolist()
    assert torch.equal(split.labels, data.train.labels[split.labeled])
    assert split.unlabeled.tolist() == list(range(16))
    few = make_split(data, DataSettings(name=str(flowers), labels=4))
    assert torch.bincount(few.labels).tolist() == [2, 2]


def test_imbalance_needs_a_number_of_labels(flowers):
    data = load(str(flowers), Path("data"))
    with pytest.raises(InvalidValue, match=r"data\.labeled_imbalance needs a number of labels"):
        make_split(data, DataSettings(name=str(flowers), labels=None, labeled_imbalance=2.0))


def test_both_spellings_of_unlabelled_work(flowers):
    (flowers / "unlabeled").rename(flowers / "Unlabelled")
    data = read_folder(flowers, 16, 0.2)
    assert data.classes == ("rose", "tulip")
    assert int((data.train.labels == -1).sum()) == 4


def test_unreadable_test_images_count_as_missing(flowers):
    for name in ("rose", "tulip"):
        paint(flowers / f"test/{name}/x.png").write_text("not an image")
    with pytest.warns(UserWarning, match="2 of 21 files"):
        assert not len(read_folder(flowers, 16, 0.2).test)


def test_file_names_that_are_not_unicode_are_read(flowers):
    file = flowers / "rose/0.png"
    file.rename(file.with_name(os.fsdecode(b"\xff\xe9.png")))
    assert len(read_folder(flowers, 16, 0.2).train) == 16


def test_the_error_says_why_a_folder_is_not_a_data_set(flowers, tmp_path):
    with pytest.raises(AggMatchError, match="There is no folder"):
        load(str(tmp_path / "missing/folder"), Path("data"))
    (tmp_path / "bare").mkdir()
    with pytest.raises(AggMatchError, match="each of at least two classes, got none"):
        load(str(tmp_path / "bare"), Path("data"))
    paint(tmp_path / "bare/rose/1.png")
    with pytest.raises(AggMatchError, match="got only 'rose'"):
        load(str(tmp_path / "bare"), Path("data"))
    for name in ("a.png", "b.png"):
        paint(tmp_path / "loose" / name)
    with pytest.raises(AggMatchError, match=r"got none, but 2 images without a label.*aggmatch label"):
        load(str(tmp_path / "loose"), Path("data"))
    for name in ("rose", "tulip"):
        paint(tmp_path / "outer/inner" / name / "1.png")
    with pytest.raises(AggMatchError, match=r"Did you mean .*outer/inner"):
        load(str(tmp_path / "outer"), Path("data"))
    paint(tmp_path / "bare/tulip/1.png")
    assert not len(load(str(tmp_path / "bare"), Path("data")).test), "the only label of a class is learned"
    paint(flowers / "test/daisy/1.png")
    with pytest.raises(AggMatchError, match=r"has the class 'daisy', which .* does not have"):
        load(str(flowers), Path("data"))


def test_the_images_and_the_test_images_stay_the_same_so_that_old_runs_resume(tmp_path):
    noise = (np.arange(40 * 30 * 4, dtype=np.uint32) * 2654435761 >> 24).astype(np.uint8).reshape(40, 30, 4)
    for number, (name, k) in enumerate((name, k) for name in ("rose", "tulip", "unlabeled") for k in range(6)):
        (tmp_path / name).mkdir(exist_ok=True)
        Image.fromarray(np.roll(noise, number * 37)[..., :3]).save(tmp_path / name / f"{k}.png")
    data = read_folder(tmp_path, 16, 0.2)
    assert data.test.names == ("rose/2.png", "tulip/1.png")
    assert (data.fingerprint, data.test_fingerprint) == ("fc58111b4ee3b5ed", "f8a631f9a2076ea6")


@pytest.mark.parametrize("name", [b"caf\xe9", b"red\x1b[31m"])
def test_a_class_folder_with_a_name_that_nobody_can_write_is_refused(flowers, name):
    (flowers / "rose").rename(flowers / os.fsdecode(name))
    with pytest.raises(AggMatchError, match=r"The name of the class folder .*(caf�|red�\[31m) is not UTF-8 or"):
        read_folder(flowers, 16, 0.2)


def test_a_folder_with_a_path_that_nobody_can_write_is_refused(flowers):
    renamed = flowers.rename(flowers.with_name(os.fsdecode(b"bl\xfcten")))
    with pytest.raises(AggMatchError, match=r"The path .*bl�ten is not UTF-8"):
        read_own_images(renamed, 16, 0.2)


def test_a_fifo_among_the_images_is_left_out(flowers):
    os.mkfifo(flowers / "rose/fifo.jpg")
    with pytest.warns(UserWarning, match=r"fifo\.jpg \(not a regular file\)"):
        data = read_folder(flowers, 16, 0.2)
    assert len(data.train) == 16


def test_without_a_holdout_there_is_no_test(flowers):
    data = read_folder(flowers, 16, 0)
    assert (len(data.train), len(data.test)) == (19, 0)
    assert data.test.pixels.shape == (0, 3, 16, 16)
    paint(flowers / "test/rose/1.png")
    paint(flowers / "test/tulip/1.png")
    assert len(read_folder(flowers, 16, 0).test) == 2, "test images that are given count"


def test_a_second_read_comes_from_the_cache_and_is_the_same(flowers, tmp_path, monkeypatch):
    calls = []
    first = read_own_images(flowers, 16, 0.2, cache_dir=str(tmp_path / "cache"), progress=lambda *c: calls.append(c))
    assert calls[-1] == (19, 19)
    monkeypatch.setattr("aggmatch.data.own.pixels.decode_stream", None)
    second = read_own_images(flowers, 16, 0.2, cache_dir=str(tmp_path / "cache"))
    assert (first.fingerprint, first.test_fingerprint) == (second.fingerprint, second.test_fingerprint)
    assert first.train.names == second.train.names


# Tables, zip and npz files --------------------------------------------------------------------------------------------


def pack(folder: Path, file: Path, top: str = "") -> Path:
    """Write a .zip of all files in a folder."""
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, Path(top, path.relative_to(folder)))
    return file


@pytest.mark.parametrize("top", ["", "photos/of/flowers"])
def test_a_zip_of_a_folder_is_the_folder(flowers, tmp_path, top):
    folder = read_own_images(flowers, 16, 0.2)
    packed = read_own_images(pack(flowers, tmp_path / "flowers.ZIP", top), 16, 0.2)
    assert packed.name == str(tmp_path / "flowers.ZIP")
    assert (packed.fingerprint, packed.test_fingerprint) == (folder.fingerprint, folder.test_fingerprint)
    assert packed.train.names == folder.train.names


def test_messages_about_a_zip_name_it_and_not_the_cache(flowers, tmp_path):
    (flowers / "rose/bad.png").write_text("not an image")
    packed = pack(flowers, tmp_path / "flowers.zip")
    with pytest.warns(UserWarning, match=rf"left out: {packed}/rose/bad\.png \(not a JPEG"):
        read_own_images(packed, 16, 0.2)
    paint(flowers / "test/daisy/1.png")
    with pytest.raises(AggMatchError, match=rf"^{packed}/test has the class 'daisy'"):
        read_own_images(pack(flowers, packed), 16, 0.2)


def test_a_folder_without_classes_uses_its_own_table(tmp_path):
    for k in range(8):
        paint(tmp_path / f"flat/{k}.png", (30 * k, 0, 0))
    (tmp_path / "flat/labels.csv").write_text("file,label\n0.png,dark\n1.png,dark\n6.png,light\n7.png,light\n")
    for path in (tmp_path / "flat", pack(tmp_path / "flat", tmp_path / "flat.zip")):
        data = read_own_images(path, 16, 0.5)
        assert data.classes == ("dark", "light")
        assert (data.train.labels.tolist().count(-1), len(data.test)) == (4, 2)


def test_folders_of_classes_win_over_a_table_that_nobody_named(flowers):
    (flowers / "labels.csv").write_text("file,label\nrose/1.png,tulip\ntulip/deep/er/1.jpg,rose\n")
    assert read_folder(flowers, 16, 0.2).train.labels.tolist().count(-1) == 4
    named = read_folder(flowers, 16, 0, labels_file=flowers / "labels.csv")
    assert named.train.labels.tolist().count(-1) == 17


def test_arrays_are_a_data_set_and_may_be_in_a_zip(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    labels = np.array(["cat", "dog"] * 10 + [""] * 20)
    np.savez(tmp_path / "data.npz", images=pixels, labels=labels)
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.write(tmp_path / "data.npz", "inside/data.npz")
    for name in ("data.npz", "data.zip"):
        data = load(str(tmp_path / name), side=16)
        assert (data.name, data.classes) == (str(tmp_path / name), ("cat", "dog"))
        assert (len(data.train), torch.bincount(data.test.labels).tolist()) == (36, [2, 2])
    assert len(load(str(tmp_path / "data.npz"), side=16, holdout=0).test) == 0
    with pytest.raises(AggMatchError, match="A table of labels needs image files"):
        load(str(tmp_path / "data.npz"), labels_file="labels.csv")


def test_images_of_an_array_are_called_by_their_rows(tmp_path):
    pixels = np.arange(12, dtype=np.uint8)[:, None, None].repeat(8, 1).repeat(8, 2)
    labels = np.array([0, 1] * 5 + [-1, -1])
    np.savez(tmp_path / "data.npz", images=pixels, labels=labels)
    data = load(str(tmp_path / "data.npz"), side=8)
    for part in (data.train, data.test):
        assert part.names == tuple(f"row {row}" for row in part.pixels[:, 0, 0, 0].tolist())
    np.savez(tmp_path / "both.npz", images=pixels, labels=labels, test_images=pixels[:2], test_labels=labels[:2])
    assert load(str(tmp_path / "both.npz"), side=8).test.names == ("test row 0", "test row 1")


def test_arrays_with_one_class_fail(tmp_path):
    np.savez(tmp_path / "one.npz", images=np.zeros((3, 8, 8), dtype=np.uint8), labels=np.array([4, 4, -1]))
    with pytest.raises(AggMatchError, match=r"one\.npz must be of at least two classes, got only '4'"):
        load(str(tmp_path / "one.npz"))


def test_a_zip_can_be_evaluated_and_predicted(flowers, tmp_path):
    packed = pack(flowers, tmp_path / "flowers.zip")
    shown = image_files(packed)
    assert str(packed / "rose/0.png") in shown.values()
    assert all(file.is_file() for file in shown)
    assert image_files(flowers / "rose/1.png") == {flowers / "rose/1.png": str(flowers / "rose/1.png")}
    (tmp_path / "flowers/unlabeled").rename(tmp_path / "unlabeled")
    images = read_labeled(pack(flowers, packed), ("rose", "tulip"), 8, 1)
    assert (images.pixels.shape, torch.bincount(images.labels).tolist()) == ((15, 1, 8, 8), [10, 5])
    with pytest.raises(AggMatchError, match=r"There is no folder .*gone\.zip"):
        read_labeled(tmp_path / "gone.zip", ("rose", "tulip"), 8, 1)


def test_the_photo_of_an_image_is_found_by_its_name(flowers, tmp_path):
    packed = pack(flowers, tmp_path / "flowers.zip")
    assert original_file(str(flowers), "rose/1.png") == flowers / "rose/1.png"
    found = original_file(str(packed), "rose/1.png")
    assert found is not None
    assert found.read_bytes() == (flowers / "rose/1.png").read_bytes()
    (tmp_path / "bad.zip").write_text("not a zip")
    for data, name in ((str(flowers), "rose/gone.png"), ("digits", "3"), (str(tmp_path / "bad.zip"), "a"), ("x", "")):
        assert original_file(data, name) is None


# Images before the first labels ------------------------------------------------------------------------------------


def labels_by_name(path: Path, labels_file: Path | None = None) -> dict[str, str | None]:
    images, classes = read_unsorted(path, 8, labels_file=labels_file)
    labels = images.labels.tolist()
    return {name: classes[label] if label >= 0 else None for name, label in zip(images.names, labels, strict=True)}


def test_a_folder_without_any_label_can_be_read(tmp_path):
    paint(tmp_path / "photos/1.png")
    paint(tmp_path / "photos/2.png")
    assert labels_by_name(tmp_path / "photos") == {"1.png": None, "2.png": None}


def test_folders_of_classes_give_labels_and_test_images_are_left_out(flowers):
    paint(flowers / "test/rose/1.png")
    paint(flowers / "loose.png")
    found = labels_by_name(flowers)
    assert found["rose/0.png"] == "rose"
    assert found["tulip/deep/er/0.jpg"] == "tulip"
    assert found["unlabeled/0.bmp"] is None
    assert found["loose.png"] is None
    assert len(found) == 20


def test_a_table_wins_over_folders_even_if_it_has_one_class(flowers, tmp_path):
    (tmp_path / "labels.csv").write_text("file,label\nrose/0.png,red\n")
    found = labels_by_name(flowers, tmp_path / "labels.csv")
    assert {label for label in found.values() if label} == {"red"}


def test_folders_in_train_are_classes(tmp_path):
    paint(tmp_path / "photos/train/rose/1.png")
    paint(tmp_path / "photos/unlabeled/1.png")
    assert labels_by_name(tmp_path / "photos") == {"train/rose/1.png": "rose", "unlabeled/1.png": None}


def test_a_zip_of_unsorted_images_can_be_read_and_a_single_file_not(tmp_path):
    paint(tmp_path / "1.png")
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        archive.write(tmp_path / "1.png", "1.png")
    assert labels_by_name(tmp_path / "photos.zip") == {"1.png": None}
    with pytest.raises(AggMatchError, match=r"1\.png is not a folder of image files"):
        read_unsorted(tmp_path / "1.png", 8)
