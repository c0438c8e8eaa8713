"""Whether more labels are worth it."""

from aggmatch.page.advice import advice
from aggmatch.page.result import Estimate
from aggmatch.runs.stats import wilson


def estimate(labels: int, accuracy: int) -> Estimate:
    right = round(accuracy * labels / 100)
    return Estimate(labels, right, labels, *wilson(right, labels))


def test_without_or_with_one_estimate_nothing_is_promised():
    assert "No estimate yet" in advice([])
    assert "does not say what more labels bring" in advice([estimate(40, 80)])


def test_a_rising_curve_says_what_twice_the_labels_add():
    text = advice([estimate(100, 60), estimate(200, 70), estimate(400, 80)])
    assert text == "More labels are worth it: 800 labels would add about 10 points."


def test_a_gain_within_the_uncertainty_is_called_a_guess():
    assert "rough guess" in advice([estimate(20, 70), estimate(40, 75)])


def test_a_flat_curve_says_that_more_labels_change_little():
    assert "change little" in advice([estimate(100, 90), estimate(200, 90), estimate(400, 90)])


def test_a_gain_is_never_more_than_what_is_missing():
    assert "about 5 points" in advice([estimate(100, 50), estimate(200, 95)])


def test_a_second_estimate_with_the_same_labels_replaces_the_first():
    assert "One estimate" in advice([estimate(40, 50), estimate(40, 80)])
