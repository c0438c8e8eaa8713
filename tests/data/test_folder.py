"""Images of your own: which files are found, how they are decoded, and how a folder becomes a data set."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from aggmatch.data import load, make_split
from aggmatch.data.folder import find_images, held_out, list_labeled, read_folder
from aggmatch.data.splits import DataSettings
from aggmatch.errors import AggMatchError
from aggmatch.validate import InvalidValue


def paint(file: Path, color: tuple[int, int, int] = (200, 30, 30), size: tuple[int, int] = (20, 20)) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(file)
    return file


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


# Files -----------------------------------------------------------------------------------------------------------


def test_images_are_found_by_suffix_in_order_and_hidden_files_are_not(tmp_path):
    for name in ("b.PNG", "a.jpg", ".hidden.png", "notes.txt", "sub/c.webp", ".cache/d.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [file.relative_to(tmp_path).as_posix() for file in find_images(tmp_path)] == ["a.jpg", "b.PNG", "sub/c.webp"]


def test_a_warning_counts_photos_of_other_formats(tmp_path):
    for name in ("a.jpg", "IMG_2.HEIC", "IMG_1.heic", ".IMG_3.heic"):
        (tmp_path / name).touch()
    with pytest.warns(UserWarning, match=r"Left out: 2 photos in .*, such as .*IMG_1\.heic\. Convert them to JPEG\."):
        assert [file.name for file in find_images(tmp_path)] == ["a.jpg"]


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
    with pytest.raises(AggMatchError, match="Class 'rose' of .* has no test image"):
        read_folder(flowers, 16, 0.2)
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


def test_links_to_folders_are_not_followed_in_circles(flowers):
    (flowers / "rose/all").symlink_to(flowers, target_is_directory=True)
    assert len(find_images(flowers / "rose")) == 10
    (flowers / "rose/linked.png").symlink_to(flowers / "rose/0.png")
    assert len(find_images(flowers / "rose")) == 11, "links to files are"


def test_both_spellings_of_unlabelled_work(flowers):
    (flowers / "unlabeled").rename(flowers / "Unlabelled")
    data = read_folder(flowers, 16, 0.2)
    assert data.classes == ("rose", "tulip")
    assert int((data.train.labels == -1).sum()) == 4


def test_unreadable_test_images_count_as_missing(flowers):
    for name in ("rose", "tulip"):
        paint(flowers / f"test/{name}/x.png").write_text("not an image")
    with pytest.warns(UserWarning, match="2 of 21 files"), pytest.raises(AggMatchError, match="no test image"):
        read_folder(flowers, 16, 0.2)


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
    paint(tmp_path / "bare/tulip/1.png")
    with pytest.raises(AggMatchError, match="no test image"):
        load(str(tmp_path / "bare"), Path("data"))
    paint(flowers / "test/daisy/1.png")
    with pytest.raises(AggMatchError, match=r"has the class 'daisy', which .* does not have"):
        load(str(flowers), Path("data"))
