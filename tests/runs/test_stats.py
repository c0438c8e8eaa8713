import pytest
from tests.conftest import dotted

from aggmatch.runs.stats import (
    Length,
    Median,
    departures,
    describe_counts,
    describe_departures,
    likeness,
    median_of_last,
    small_test,
    usual_settings,
    wilson,
)
from aggmatch.settings import resolve


def settings(**changes):
    return resolve({"recipe": "paper"} | dotted(changes))


def test_lengths_sort_unfinished_before_finished_and_short_before_long():
    lengths = [Length(False, 900, 1000), Length(True, 5, 5), Length(False, 20, 1000), Length(True, 1000, 1000)]
    assert [length.text for length in sorted(lengths)] == ["20 of 1,000", "900 of 1,000", "5", "1,000"]


@pytest.mark.parametrize(
    ("counts", "text"), [([20, 20], "20 evaluations"), ([1], "1 evaluation"), ([20, 3, 5], "3 to 20 evaluations")]
)
def test_the_number_of_evaluations_in_medians_is_described(counts, text):
    assert describe_counts(Median(50.0, count) for count in counts) == text


def test_departures_are_all_settings_except_fold_and_length():
    planned = settings()
    assert departures(planned, settings(data__fold=2, train__steps=7, train__evaluate_every=3)) == {}
    assert departures(planned, settings(data__test_images="run/split.json")) == {}, "a file in the run's own folder"
    changes = departures(planned, settings(train__seed=3, model__name="small-4"))
    assert describe_departures(changes) == "model.name is 'small-4', not 'small-16'; train.seed is 3, not 0"


COLD = {"recipe": "cold-start", "method__name": "aggmatch", "data__name": "cifar10"}


def test_first_steps_that_a_recipe_shortens_for_a_short_run_are_no_departure():
    short = settings(**COLD, train__steps=100)
    assert short.method.warmup == 25 < settings(**COLD).method.warmup
    assert departures(settings(**COLD), short) == departures(short, settings(**COLD)) == {}
    changed = departures(settings(**COLD), settings(**COLD, train__steps=100, method__warmup=20))
    assert changed == {"method.warmup": (1500, 20)}
    longer = departures(settings(**COLD), settings(**COLD, train__steps=100, method__warmup=1500))
    assert not longer, "the same value as planned"


def test_first_steps_that_the_plan_chose_are_not_those_of_the_recipe():
    planned = settings(**COLD, method__warmup=7)
    assert departures(planned, settings(**COLD, train__steps=100)) == {"method.warmup": (7, 25)}
    other = departures(settings(**(COLD | {"recipe": "paper"})), settings(**COLD, train__steps=100))
    assert other["method.warmup"] == (0, 25)


def test_usual_settings_are_those_of_the_recipe_but_what_follows_from_the_steps():
    usual = usual_settings(settings(**COLD, train__steps=100, optim__lr=0.5, method__warmup=3))
    assert (usual["train.steps"], usual["train.log_every"], usual["method.warmup"]) == (2**20, 5, 25)
    assert usual["optim.lr"] == 0.06


def test_runs_are_alike_if_they_differ_only_in_length():
    assert likeness(settings()) == likeness(settings(train__steps=7, train__log_every=3))
    assert likeness(settings()) != likeness(settings(data__fold=1))
    assert likeness(settings()) != likeness(settings(train__seed=1))
    assert likeness(settings(), any_fold=True) == likeness(settings(data__fold=1), any_fold=True)


def test_the_median_is_that_of_the_last_twenty_evaluations():
    assert median_of_last([float(n) for n in range(1, 26)]) == Median(15.5, 20)
    assert median_of_last([1.0, 2.0]) == Median(1.5, 2)
    assert median_of_last([]) is None


@pytest.mark.parametrize(
    ("right", "images", "low", "high"), [(9, 10, 59.6, 98.2), (0, 10, 0.0, 27.8), (50, 50, 92.9, 100.0)]
)
def test_wilsons_interval_agrees_with_published_values(right, images, low, high):
    assert list(wilson(right, images)) == pytest.approx([low, high], abs=0.05)


def test_few_test_images_are_called_few_with_what_they_can_mean():
    assert small_test(3).startswith("3 test images cannot tell how good a model is: 2 of 3 right, 66.7 %, can mean")
    assert f"anything from {wilson(2, 3)}." in small_test(3)
    assert small_test(1).startswith("1 test image ")
    assert small_test(29)
    assert (small_test(30), small_test(0)) == ("", "")
