import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aggmatch.data import DataSettings, draw_split, load
from aggmatch.data.draw import apportion, long_tail
from aggmatch.errors import AggMatchError
from aggmatch.validate import InvalidValue

QUICK = settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
THIRTY = [0, 1, 2] * 10


def error_of(data, **values) -> str:
    with pytest.raises(AggMatchError) as error:
        draw_split(data, DataSettings(**values))
    return str(error.value)


# Drawing ---------------------------------------------------------------------------------------------------------


@given(labels=st.lists(st.integers(-1, 3), max_size=60), per_class=st.integers(1, 5), fold=st.integers(0, 2**40))
@QUICK
def test_every_class_gets_its_number_of_correct_labels(small_data, labels, per_class, fold):
    data = small_data(labels + list(range(4)) * 5, classes=4)
    split = draw_split(data, DataSettings(labels=4 * per_class, fold=fold))
    assert split.labels.bincount(minlength=4).tolist() == [per_class] * 4
    assert torch.equal(data.train.labels[split.labeled], split.labels)
    assert len(split.labeled.unique()) == 4 * per_class
    assert torch.equal(split.unlabeled, torch.arange(len(data.train)))


@given(fold=st.integers(0, 1000), fewer=st.integers(1, 10), more=st.integers(1, 10))
@QUICK
def test_more_labels_include_those_of_fewer_labels(small_data, fold, fewer, more):
    data = small_data(THIRTY)
    fewer, more = sorted((fewer, more))
    short, long = (draw_split(data, DataSettings(labels=3 * n, fold=fold)).labeled for n in (fewer, more))
    assert torch.equal(long[: len(short)], short)


def test_folds_differ_and_each_is_always_the_same(small_data):
    data = small_data([0, 1, 2] * 100)
    chosen = {tuple(draw_split(data, DataSettings(labels=30, fold=fold)).labeled.tolist()) for fold in range(5)}
    assert len(chosen) == 5


def test_the_folds_of_digits_never_change(tmp_path):
    digits = load("digits", tmp_path)
    assert [draw_split(digits, DataSettings(labels=10, fold=fold)).labeled.tolist() for fold in range(3)] == [
        [783, 221, 725, 1076, 1327, 577, 155, 289, 1091, 1258],
        [575, 858, 414, 670, 817, 1360, 593, 606, 401, 610],
        [658, 1100, 1193, 1141, 890, 499, 376, 396, 301, 419],
    ]


def test_every_image_is_equally_likely_to_be_chosen(small_data):
    data = small_data([0, 1] * 4, classes=2)
    chosen = torch.cat([draw_split(data, DataSettings(labels=4, fold=fold)).labeled for fold in range(2000)])
    assert (chosen.bincount() - 1000).abs().max() < 120  # more than five standard deviations


def test_global_random_state_is_neither_used_nor_changed(small_data):
    data = small_data(THIRTY)
    torch.manual_seed(1)
    np.random.seed(1)
    before = torch.get_rng_state(), np.random.get_state(legacy=False)["state"]["key"].copy()
    first = draw_split(data, DataSettings(labels=6, noise="symmetric", noise_rate=0.5))
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state(legacy=False)["state"]["key"], before[1])
    torch.manual_seed(2)
    np.random.seed(2)
    assert first.encoded() == draw_split(data, DataSettings(labels=6, noise="symmetric", noise_rate=0.5)).encoded()


def test_noise_and_imbalance_do_not_change_the_chosen_images(small_data):
    data = small_data([0, 1, 2] * 40)
    plain = draw_split(data, DataSettings(labels=30))
    noisy = draw_split(data, DataSettings(labels=30, noise="symmetric", noise_rate=0.3, unlabeled_imbalance=4))
    assert torch.equal(plain.labeled, noisy.labeled)
    assert (plain.labels != noisy.labels).sum() == 9


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        (4, "must be a multiple of 3, the number of classes of small, got 4; the nearest are 3 and 6"),
        (2, "must be at least 3, one for each class of small, got 2"),
        (33, "needs 11 images of class 'a', but small has only 10 with a label, got 33"),
    ],
)
def test_an_impossible_number_of_labels_fails_and_the_error_says_what_is_possible(small_data, labels, problem):
    with pytest.raises(InvalidValue, match=problem) as error:
        draw_split(small_data(THIRTY), DataSettings(labels=labels))
    assert error.value.key == "data.labels"


def test_the_error_names_a_class_with_too_few_images(small_data):
    message = error_of(small_data([0, 0, 1, 2, 2, -1, -1]), labels=6)
    assert "needs 2 images of class 'b', but small has only 1" in message


@pytest.mark.parametrize(
    ("labels", "classes", "problem"),
    [
        ([0, 0], 1, "small needs at least two classes, got 1"),
        ([-1, -1], 3, "Class 'a' of small has no labelled training image"),
        ([], 3, "Class 'a' of small has no labelled training image"),
        ([0, 2, -1], 3, "Class 'b' of small has no labelled training image"),
    ],
)
def test_the_error_says_why_a_data_set_cannot_be_split(small_data, labels, classes, problem):
    assert problem in error_of(small_data(labels, classes=classes), labels=3)


# Long tails ------------------------------------------------------------------------------------------------------


def test_a_long_tail_falls_by_its_ratio():
    np.testing.assert_allclose(long_tail(3, 100), [1, 0.1, 0.01])


@given(classes=st.integers(2, 30), ratio=st.floats(1, 1e6), extra=st.integers(0, 2000))
@QUICK
def test_apportioned_numbers_are_whole_ordered_and_add_up(classes, ratio, extra):
    tail = long_tail(classes, ratio)
    total = classes + extra
    counts = apportion(total, tail)
    assert counts.sum() == total
    assert counts.min() >= 1
    assert (np.diff(counts) <= 0).all()
    # Counts above one keep the proportions up to rounding.
    free = counts > 1
    if free.any():
        share = counts[free].sum() * tail[free] / tail[free].sum()
        assert abs(counts[free] - share).max() < classes


def test_counts_are_rounded_by_largest_remainder():
    # 10 · (4, 2, 1) / 7 = 5.71, 2.86, 1.43
    assert apportion(10, np.array([4.0, 2.0, 1.0])).tolist() == [6, 3, 1]
    # One each for the last two, 8 for the first
    assert apportion(10, np.array([100.0, 1.0, 1.0])).tolist() == [8, 1, 1]


def test_one_for_each_class_is_possible_despite_float_rounding():
    assert 49 * (1 / 49) < 1
    assert apportion(2, np.array([49.0, 49.0])).tolist() == [1, 1]


def test_labelled_images_form_a_long_tail_with_the_exact_total(small_data):
    data = small_data([0, 1, 2] * 100)
    split = draw_split(data, DataSettings(labels=37, labeled_imbalance=9))
    # 37 · (1, 1/3, 1/9) · 9/13 = 25.6, 8.5, 2.8
    assert split.labels.bincount().tolist() == [26, 8, 3]
    assert torch.equal(split.unlabeled, torch.arange(300))


def test_unlabelled_images_form_the_largest_possible_tail(small_data):
    data = small_data([0] * 100 + [1] * 100 + [2] * 100)
    split = draw_split(data, DataSettings(labels=9, unlabeled_imbalance=16))
    assert data.train.labels[split.unlabeled].bincount().tolist() == [100, 25, 6]
    assert torch.isin(split.labeled, split.unlabeled).all()
    assert (split.unlabeled.diff() > 0).all()


def test_a_small_class_limits_the_tail(small_data):
    data = small_data([0] * 100 + [1] * 10 + [2] * 100)
    split = draw_split(data, DataSettings(labels=3, unlabeled_imbalance=4))
    assert data.train.labels[split.unlabeled].bincount().tolist() == [20, 10, 5]


def test_a_long_tail_with_more_images_than_a_class_has_fails(small_data):
    assert "needs 12 images of class 'a', but small has only 10" in error_of(
        small_data(THIRTY), labels=14, labeled_imbalance=100
    )


def test_an_unlabelled_tail_needs_the_class_of_every_image(small_data):
    message = error_of(small_data([*THIRTY, -1, -1]), labels=3, unlabeled_imbalance=2)
    assert "needs the class of every training image, but 2 images of small have none, got 2.0" in message


# Noise -----------------------------------------------------------------------------------------------------------


def test_asymmetric_noise_follows_the_map_of_the_data_set(small_data):
    data = small_data(THIRTY, noise_map={"a": "c"})
    split = draw_split(data, DataSettings(labels=12, noise="asymmetric", noise_rate=0.25))
    assert split.labels.bincount().tolist() == [3, 4, 5]


def test_a_noise_map_in_the_settings_replaces_that_of_the_data_set(small_data):
    data = small_data(THIRTY, noise_map={"a": "c"})
    split = draw_split(data, DataSettings(labels=12, noise="asymmetric", noise_rate=0.5, noise_map=("b>a",)))
    assert split.labels.bincount().tolist() == [6, 2, 4]


def test_asymmetric_noise_without_a_map_fails_and_the_error_shows_an_example(small_data):
    message = error_of(small_data(THIRTY), labels=3, noise="asymmetric", noise_rate=0.5)
    assert message.startswith("data.noise_map ")
    assert '["cat>dog"]' in message


def test_a_noise_map_with_an_unknown_class_fails(small_data):
    message = error_of(small_data(THIRTY), labels=3, noise="asymmetric", noise_rate=0.5, noise_map=("a>z",))
    assert message == "Unknown class in data.noise_map 'z'. Known: a, b, c."


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"noise_rate": 0.2}, "data.noise_rate needs data.noise"),
        ({"noise": "symmetric"}, "data.noise_rate must be above 0"),
        ({"noise_map": ["a>b"]}, "data.noise_map needs asymmetric noise"),
        ({"noise": "asymmetric", "noise_rate": 0.1, "noise_map": ["a"]}, "data.noise_map .* two different classes"),
        ({"split": "f", "labeled_imbalance": 2}, "data.labeled_imbalance cannot be combined with the split f"),
        ({"split": "f", "noise": "symmetric", "noise_rate": 0.1}, "data.noise cannot be combined with the split f"),
        ({"labels": 0}, "data.labels must be at least 1, got 0"),
        ({"labeled_imbalance": 0.5}, "data.labeled_imbalance must be at least 1, got 0.5"),
    ],
)
def test_contradicting_settings_fail_and_the_error_names_the_setting_and_its_source(values, problem):
    with pytest.raises(InvalidValue, match=f"^{problem}") as error:
        DataSettings.build(values, {f"data.{key}": "here" for key in values}, prefix="data.")
    assert error.value.source == ("here" if error.value.key.removeprefix("data.") in values else "")
