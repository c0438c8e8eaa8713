"""What the label page says about more labels."""

from aggmatch.page.estimate import Estimate, advice
from aggmatch.runs.stats import wilson


def estimate(labels: int, accuracy: int, gain: float | None) -> Estimate:
    return Estimate(labels, accuracy, *wilson(round(accuracy * labels / 100), labels), gain=gain)


def test_without_an_estimate_or_with_few_labels_nothing_is_promised():
    assert "No estimate yet" in advice(None)
    assert "too few labels to say" in advice(estimate(10, 80, None))


def test_a_gain_says_what_twice_the_labels_add():
    text = advice(estimate(400, 80, 10.2))
    assert text == "More labels are worth it: 800 labels would add up to 10 points."


def test_a_gain_within_the_uncertainty_is_called_a_guess():
    assert "rough guess" in advice(estimate(40, 75, 5.0))


def test_a_small_or_negative_gain_says_that_more_labels_change_little():
    for gain in (0.4, -3.0):
        assert "change little" in advice(estimate(400, 90, gain))


def test_a_gain_is_never_more_than_what_is_missing():
    assert "up to 5 points" in advice(estimate(400, 95, 45.0))
