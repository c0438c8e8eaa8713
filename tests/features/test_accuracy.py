"""The accuracy on images without a label."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aggmatch.features.accuracy import calibrated, judge


def predictions(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Confidences from 0.5 to 1, and whether each prediction is right: as often as its confidence says."""
    generator = np.random.default_rng(seed)
    confidence = generator.uniform(0.5, 1, count)
    return confidence, (generator.uniform(size=count) < confidence).astype(float)


def test_labels_of_doubtful_images_do_not_lower_the_accuracy_of_the_others():
    confidence, right = predictions(2000, 0)
    chosen = np.argsort(confidence)[:300]
    assert right[chosen].mean() < 0.6
    rest = np.setdiff1d(np.arange(2000), chosen)
    judged = calibrated(confidence[chosen], right[chosen], np.ones(300), confidence[rest])
    assert judged.low < 100 * right[rest].mean() < judged.high


def test_a_model_that_is_too_certain_is_not_believed():
    _, right = predictions(400, 1)
    certain = np.full(400, 0.999)
    judged = calibrated(certain, right, np.ones(400), certain)
    assert judged.accuracy == pytest.approx(100 * right.mean(), abs=3)


def test_labels_that_are_all_predicted_right_tell_more_the_more_they_are():
    few, many = (
        calibrated(np.full(count, 0.97), np.ones(count), np.ones(count), np.full(9, 0.97)) for count in (8, 60)
    )
    assert 60 < few.low < many.low < many.accuracy < many.high <= 100
    assert many.low > 90


def test_with_many_labels_the_prior_does_not_matter():
    confidence, right = predictions(20_000, 3)
    judged = calibrated(1 - (1 - confidence) / 3, right, np.ones(20_000), 1 - (1 - confidence) / 3)
    assert judged.accuracy == pytest.approx(100 * right.mean(), abs=0.5)


def test_a_label_counts_for_the_images_that_are_like_it():
    # 90 images are like the first label, which is predicted right; ten are like each of the nine wrong ones
    features = torch.eye(10)[torch.arange(10).repeat_interleave(torch.tensor([90] + [10] * 9))]
    features += 0.01 * torch.randn(features.shape, generator=torch.Generator().manual_seed(0))
    first = [0, *range(90, 180, 10)]
    probs = np.tile(np.array([[0.8, 0.2]], np.float32), (180, 1))
    unseen = dict.fromkeys(first, probs[0])
    given = {place: int(place > 0) for place in first}
    judged = judge(features, probs, unseen, given)
    plain = calibrated(np.full(10, 0.8), np.array([1.0] + [0.0] * 9), np.ones(10), np.full(170, 0.8))
    assert judged.accuracy > plain.accuracy + 20


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans(), st.floats(0.5, 1e4)), min_size=1, max_size=40),
    st.lists(st.floats(0, 1), min_size=1, max_size=40),
)
def test_any_predictions_give_an_accuracy_within_its_interval(known, others):
    confidence, right, weight = (np.array(column, np.float64) for column in zip(*known, strict=True))
    judged = calibrated(confidence, right, weight, np.array(others))
    assert 0 <= judged.low <= judged.high <= 100
    assert 0 <= judged.accuracy <= 100


def test_a_folder_of_which_every_image_has_a_label_is_judged_too():
    probs = np.array([[0.9, 0.1], [0.2, 0.8]] * 10, np.float32)
    judged = judge(torch.randn(20, 4), probs, dict(enumerate(probs)), {place: place % 2 for place in range(20)})
    assert judged.accuracy > 90
