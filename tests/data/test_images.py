import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aggmatch.data import Archive, DataSet, Images
from aggmatch.data.images import reading
from aggmatch.errors import AggMatchError


def images(count: int = 2, size: int = 4) -> Images:
    return Images(torch.zeros(count, 1, size, size, dtype=torch.uint8), torch.zeros(count, dtype=torch.int64))


def test_images_have_a_length_and_move_between_devices():
    moved = images(3).to("meta")
    assert len(moved) == 3
    assert moved.pixels.device.type == moved.labels.device.type == "meta"


def named(*names: str) -> Images:
    plain = images(len(names))
    return Images(plain.pixels, plain.labels, names)


def test_names_move_with_the_images_and_their_number_must_match():
    assert named("a", "b").to("meta").names == ("a", "b")
    with pytest.raises(AggMatchError, match="one for each of 2 images, got 1"):
        Images(images().pixels, images().labels, ("a",))


def test_an_image_is_found_by_number_by_name_or_by_the_end_of_its_name():
    some = named("red/a.png", "red/b.png", "blue/b.png", "7")
    assert [some.find(word) for word in ("red/b.png", "a.png", "2", "7")] == [1, 0, 2, 3]
    assert [some.call(1), images().call(1)] == ["red/b.png", "1"]
    assert images().find("1") == 1


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("b.png", "2 images are called 'b.png': red/b.png, blue/b.png."),
        ("4", "There is no image '4'. Images have numbers from 0 to 2; a name is, for example, 'red/a.png'."),
        ("-1", "There is no image '-1'"),
        ("ed/b.png", "There is no image 'ed/b.png'"),
        ("", "There is no image ''"),
    ],
)
def test_a_word_that_matches_no_image_or_several_fails(word, problem):
    with pytest.raises(AggMatchError) as error:
        named("red/a.png", "red/b.png", "blue/b.png").find(word)
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("pixels", "labels", "problem"),
    [
        (torch.zeros(2, 1, 4, 4), torch.zeros(2, dtype=torch.int64), "float32 of shape (2, 1, 4, 4)"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), "uint8 of shape (2, 4, 4)"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2), "one for each of 2 images, got float32"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64), "int64 of shape (3,)"),
    ],
)
def test_wrong_shapes_and_types_fail(pixels, labels, problem):
    with pytest.raises(AggMatchError) as error:
        Images(pixels, labels)
    assert problem in str(error.value)


def test_a_label_above_the_number_of_classes_fails():
    train = Images(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 2]))
    with pytest.raises(AggMatchError, match=r"must be in \[-1, 1\], got 0 to 2"):
        DataSet("pair", train, images(), ("a", "b"), mirror=False)


def test_unknown_labels_are_accepted():
    train = Images(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([-1, 1]))
    assert DataSet("pair", train, images(), ("a", "b"), mirror=False).train is train


def test_test_images_of_another_size_fail():
    with pytest.raises(AggMatchError, match="must have the same size"):
        DataSet("pair", images(size=4), images(size=5), ("a", "b"), mirror=False)


def test_classes_may_be_any_sequence():
    assert DataSet("mine", images(), images(), ["a", "b"], True).classes == ("a", "b")  # type: ignore[arg-type]


def test_two_classes_with_the_same_name_fail():
    with pytest.raises(AggMatchError, match="must differ"):
        DataSet("pair", images(), images(), ("a", "a"), mirror=False)


def test_an_archive_is_present_packed_or_completely_unpacked(tmp_path: Path):
    archive = Archive("all.tar.gz", "http://localhost/", "", 1, members=("all/one", "all/two"))
    assert archive.wanted(tmp_path) == "all.tar.gz (or the folder all)"
    (tmp_path / "all").mkdir()
    (tmp_path / "all/one").touch()
    assert not archive.present(tmp_path)
    assert archive.wanted(tmp_path) == "all.tar.gz (the folder all exists but lacks two)"
    (tmp_path / "all.tar.gz").touch()
    assert archive.present(tmp_path)
    assert not archive.unpacked(tmp_path)
    (tmp_path / "all/two").touch()
    assert archive.unpacked(tmp_path)


@pytest.mark.parametrize(
    ("thrown", "message"),
    [
        (KeyError("x"), "f is corrupt ('x'). Delete it and download it again."),
        (EOFError(), "f is corrupt (EOFError). Delete it and download it again."),
        (PermissionError(errno.EACCES, "Permission denied"), "Cannot read f: Permission denied."),
        (MemoryError(), "There is not enough memory to read f, or the file is corrupt."),
        (AggMatchError("As it was."), "As it was."),
    ],
)
def test_every_exception_of_a_parser_becomes_an_error_that_names_the_file(thrown, message):
    with pytest.raises(AggMatchError) as error, reading(Path("f")):
        raise thrown
    assert str(error.value) == message


def test_the_error_about_an_array_says_how_to_convert_it():
    pixels: Any = np.zeros((2, 1, 8, 8), np.uint8)
    labels: Any = np.zeros(2, np.int64)
    with pytest.raises(AggMatchError, match=r"Pixels must be a torch tensor, got ndarray\. .*from_numpy"):
        Images(pixels, labels)
    with pytest.raises(AggMatchError, match=r"Labels must be a torch tensor, got ndarray\. .*from_numpy"):
        Images(torch.from_numpy(pixels), labels)


@pytest.mark.parametrize("name", ["caf\udce9", "a\0b", 5])
def test_a_class_name_that_no_file_can_hold_is_refused_before_training(small_data, name):
    with pytest.raises(AggMatchError, match="A class of small has a name that no file can hold"):
        replace(small_data([0, 1, 2]), classes=("a", "b", name))
