import pytest

from aggmatch.runs.stats import Length, Median, departures, describe_counts, describe_departures, likeness
from aggmatch.settings import resolve


def settings(**changes):
    return resolve({key.replace("__", "."): value for key, value in changes.items()})


def test_finished_runs_are_better_founded_than_unfinished_ones_and_long_ones_than_short_ones():
    lengths = [Length(False, 900, 1000), Length(True, 5, 5), Length(False, 20, 1000), Length(True, 1000, 1000)]
    assert [length.text for length in sorted(lengths)] == ["20 of 1,000", "900 of 1,000", "5", "1,000"]


@pytest.mark.parametrize(
    ("counts", "text"),
    [([20, 20], "20 evaluations"), ([1], "1 evaluation"), ([20, 3, 5], "3 to 20 evaluations")],
)
def test_medians_say_how_many_evaluations_they_are_of(counts, text):
    assert describe_counts(Median(50.0, count) for count in counts) == text


def test_fold_and_length_are_no_departure_and_all_else_is():
    planned = settings()
    assert departures(planned, settings(data__fold=2, train__steps=7, train__evaluate_every=3)) == {}
    changes = departures(planned, settings(train__seed=3, model__name="small-4"))
    assert describe_departures(changes) == "model.name is 'small-4', not 'small-16'; train.seed is 3, not 0"


def test_runs_are_alike_if_they_differ_in_their_length_alone():
    assert likeness(settings()) == likeness(settings(train__steps=7, train__log_every=3))
    assert likeness(settings()) != likeness(settings(data__fold=1))
    assert likeness(settings()) != likeness(settings(train__seed=1))
