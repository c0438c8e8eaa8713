"""What was read, in one line, and what looks wrong about it."""

import pytest
import torch

from aggmatch.data import DataSet, DataSettings, Images, draw_split
from aggmatch.data.own.summary import describe, doubts


def images(labels: list[int], first: int = 0) -> Images:
    """Images that differ, called `first`, `first + 1` and so on."""
    numbers = torch.arange(first, first + len(labels), dtype=torch.int64)
    pixels = (numbers[:, None, None, None] % 256).expand(-1, 1, 8, 8).to(torch.uint8).clone()
    return Images(pixels, torch.tensor(labels, dtype=torch.int64), tuple(f"{k}.jpg" for k in numbers.tolist()))


def data_set(train: Images, test: Images, *classes: str) -> DataSet:
    return DataSet("photos", train, test, classes or ("dress", "hat"), mirror=True)


GOOD = data_set(images([0, 0, 1, -1, -1]), images([0, 1] * 20, 100))


def test_the_summary_counts_labels_by_class_unlabelled_and_test_images():
    assert describe(GOOD) == "2 classes: dress 2, hat 1; 2 unlabelled; 40 test"
    assert not doubts(GOOD)


def test_the_summary_counts_the_labels_that_a_run_uses():
    split = draw_split(GOOD, DataSettings(name="photos", labels=2))
    assert describe(GOOD, split) == "2 classes: dress 1, hat 1; 3 unlabelled; 40 test"


def test_large_numbers_have_commas_and_names_with_numbers_a_colon():
    train = Images(torch.zeros(2002, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1] + [-1] * 2000))
    assert describe(data_set(train, images([]), "0", "type 2")) == (
        "2 classes: 0: 1, type 2: 1; 2,000 unlabelled; no test images"
    )


def test_long_lists_of_classes_are_cut():
    text = describe(data_set(images(list(range(20))), images([]), *(f"class {chr(65 + k)}" for k in range(20))))
    assert text.startswith("20 classes: class A 1, class B 1, ")
    assert "class L 1 and 8 more classes; 0 unlabelled" in text


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("unknown", "unlabeled"),
        ("Unlabeled images", "unlabeled"),
        ("UnlabelledPhotos", "unlabeled"),
        ("testing", "test"),
        ("test_images", "test"),
        ("Validation set", "test"),
        ("training", "train"),
    ],
)
def test_a_class_that_looks_like_a_folder_with_a_meaning_is_doubted(name, folder):
    (doubt,) = doubts(data_set(GOOD.train, GOOD.test, "hat", name))
    assert doubt.startswith(f"'{name}' is used as a class.")
    assert f"call the folder '{folder}'" in doubt


@pytest.mark.parametrize("name", ["trainers", "tester", "evaluator", "knowns", "Contest", "0", "été", "-"])
def test_other_classes_are_not_doubted(name):
    assert not doubts(data_set(GOOD.train, GOOD.test, "hat", name))


@pytest.mark.parametrize("names", [("Cat", "cat"), ("t-shirt", "t shirt"), ("e\u0301te\u0301", "été"), ("A ", "a")])
def test_classes_that_differ_only_in_case_spaces_or_hyphens_are_doubted(names):
    (doubt,) = doubts(data_set(GOOD.train, GOOD.test, *names))
    assert doubt.startswith(f"'{names[0]}' and '{names[1]}' are different classes.")


def test_classes_of_signs_alone_are_not_similar():
    assert not doubts(data_set(GOOD.train, GOOD.test, "-", "--"))


def test_one_image_in_two_classes_is_named():
    train = images([0, 1, 1, -1, 0])
    train.pixels[2] = train.pixels[4] = train.pixels[0]
    train.pixels[3] = train.pixels[1]
    assert doubts(data_set(train, GOOD.test)) == ["1 image is in two classes: 0.jpg and 2.jpg."]


def test_images_in_training_and_test_are_named():
    test = images([0, 1] * 20, 100)
    test.pixels[3] = GOOD.train.pixels[4]
    test.pixels[5] = GOOD.train.pixels[0]
    (doubt,) = doubts(data_set(GOOD.train, test))
    assert doubt.startswith("2 test images are also among the training images")
    assert doubt.endswith(": 4.jpg and 103.jpg, 0.jpg and 105.jpg.")


def test_training_without_unlabelled_or_test_images_is_doubted():
    labeled = data_set(images([0, 1, 0, 1]), GOOD.test)
    (doubt,) = doubts(labeled)
    assert doubt.startswith("All training images have a label")
    assert not doubts(labeled, draw_split(labeled, DataSettings(name="photos", labels=2))), "the others are unlabelled"
    (doubt,) = doubts(data_set(GOOD.train, images([])))
    assert doubt.startswith("There are no test images")


def test_classes_without_a_test_image_are_named():
    (doubt,) = doubts(data_set(images([0, 0, 1, -1, -1]), images([0] * 20, 100)))
    assert doubt.startswith("There is no test image of 'hat', so that")
    assert "Label at least two" in doubt
    (doubt,) = doubts(data_set(images([0, 0, 1, 1, -1]), images([0] * 20, 100)))
    assert "Label at least two" not in doubt, "it has two labels; other test images were kept or given"
