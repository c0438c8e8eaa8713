import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggmatch.data.noise import asymmetric, class_numbers, flips, parse_map, symmetric
from aggmatch.errors import AggMatchError
from aggmatch.validate import InvalidValue

LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=80).map(np.array)
HUNDREDTHS = st.integers(0, 100)


@pytest.mark.parametrize(
    ("rate", "count", "wanted"),
    [(0.25, 4, 1), (0.25, 2, 0), (0.25, 1, 0), (0.5, 25, 12), (0.29, 100, 29), (0.35, 10, 3), (0.0, 9, 0), (1.0, 9, 9)],
)
def test_the_flipped_share_never_exceeds_the_rate(rate, count, wanted):
    assert flips(rate, count) == wanted


@given(hundredths=HUNDREDTHS, count=st.integers(0, 10_000))
def test_the_number_of_flips_is_exact(hundredths, count):
    assert flips(hundredths / 100, count) == math.floor(Fraction(hundredths, 100) * count)


def test_asymmetric_noise_flips_one_of_four_in_mapped_classes_only():
    labels = np.repeat(np.arange(5), 4)
    noisy = asymmetric(labels, {0: 3, 1: 2, 2: 1}, 0.25, seed=7)
    table = np.zeros((5, 5), int)
    np.add.at(table, (labels, noisy), 1)
    assert table.tolist() == [[3, 0, 0, 1, 0], [0, 3, 1, 0, 0], [0, 1, 3, 0, 0], [0, 0, 0, 4, 0], [0, 0, 0, 0, 4]]


@given(labels=LABELS, hundredths=HUNDREDTHS, seed=st.integers(0, 99))
def test_symmetric_noise_flips_its_exact_share_of_every_class(labels, hundredths, seed):
    noisy = symmetric(labels, 5, hundredths / 100, seed)
    assert ((noisy >= 0) & (noisy < 5)).all()
    for k in range(5):
        assert np.count_nonzero(noisy[labels == k] != k) == flips(hundredths / 100, int(np.count_nonzero(labels == k)))


def test_symmetric_noise_reaches_all_other_classes_equally():
    noisy = symmetric(np.zeros(30_000, np.int64), 4, 1.0, seed=0)
    counts = np.bincount(noisy, minlength=4)
    assert counts[0] == 0
    assert abs(counts[1:] - 10_000).max() < 500  # more than five standard deviations


def test_symmetric_noise_on_two_classes_swaps_them():
    assert symmetric(np.array([0, 1]), 2, 1.0, seed=0).tolist() == [1, 0]


@given(labels=LABELS)
def test_a_seed_fixes_the_noise_and_the_input_stays_unchanged(labels):
    before = labels.copy()
    np.testing.assert_array_equal(symmetric(labels, 5, 0.5, seed=3), symmetric(labels, 5, 0.5, seed=3))
    np.testing.assert_array_equal(asymmetric(labels, {0: 1}, 0.5, 3), asymmetric(labels, {0: 1}, 0.5, 3))
    np.testing.assert_array_equal(labels, before)


def test_another_seed_flips_other_labels():
    labels = np.zeros(100, np.int64)
    assert (asymmetric(labels, {0: 1}, 0.5, seed=0) != asymmetric(labels, {0: 1}, 0.5, seed=1)).any()


def test_a_map_is_read_from_items_with_arrows():
    assert parse_map(("cat>dog", " dog > cat ")) == {"cat": "dog", "dog": "cat"}
    assert parse_map(()) == {}


@pytest.mark.parametrize("item", ["cat", "cat>", ">dog", "", "cat>cat"])
def test_an_item_without_two_classes_fails(item):
    with pytest.raises(InvalidValue, match=f"two different classes, got '{item}'"):
        parse_map((item,))


def test_a_class_that_is_mapped_twice_fails():
    with pytest.raises(InvalidValue, match="got 'cat' again in 'cat>bird'"):
        parse_map(("cat>dog", "cat>bird"))


def test_class_names_become_numbers_and_an_unknown_name_gets_a_suggestion():
    assert class_numbers({"dog": "cat"}, ("bird", "cat", "dog")) == {2: 1}
    with pytest.raises(AggMatchError, match=r"Unknown class in data.noise_map 'dgo'. Did you mean 'dog'"):
        class_numbers({"dgo": "cat"}, ("cat", "dog"))
    with pytest.raises(AggMatchError, match=r"Unknown class in data.noise_map 'cta'. Did you mean 'cat'"):
        class_numbers({"dog": "cta"}, ("cat", "dog"))
