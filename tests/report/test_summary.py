from typing import NoReturn

import pytest
from scipy.stats import binomtest
from tests.folders import line, write_folder

from aggmatch.errors import AggMatchError
from aggmatch.report.summary import pairs, standing, verdict, verdict_of_several, wilson
from aggmatch.runs.stored import RunRecord, read_runs


@pytest.mark.parametrize(("right", "images"), [(348, 360), (0, 10), (10, 10), (1, 2), (9_254, 10_000)])
def test_the_interval_is_wilsons(right, images):
    oracle = binomtest(right, images).proportion_ci(0.95, method="wilson")
    assert wilson(right, images) == pytest.approx((100 * oracle.low, 100 * oracle.high), abs=1e-4)


def test_a_finished_run_is_told_by_its_summary(tmp_path):
    summary = {"accuracy": 348 / 3.6, "pseudo_precision": 0.9623, "pseudo_coverage": 0.99}
    (run,) = read_runs([write_folder(tmp_path / "a", [line(1000, accuracy_average=12.0)], summary)])
    assert verdict(run) == (
        "fixmatch learnt digits from 40 labels: after step 1,000 its averaged network is right on 96.67 % of 360 test "
        "images (95 % interval 94.3 to 98.1 %). At the end, 96.2 % of the pseudo labels it learnt from were right."
    )


def test_a_run_without_pseudo_labels_says_nothing_of_them(tmp_path):
    (run,) = read_runs([write_folder(tmp_path / "a", [], {}, method="supervised")])
    assert verdict(run).endswith("(95 % interval 86.5 to 92.7 %).")


def test_pseudo_labels_of_which_none_counted_have_no_precision(tmp_path):
    (run,) = read_runs([write_folder(tmp_path / "a", [], {"pseudo_precision": 0.0, "pseudo_coverage": 0.0})])
    assert standing(run).precision is None


def test_an_unfinished_run_is_told_by_its_log(tmp_path):
    log = [
        line(100, accuracy_average=50.0, pseudo_precision=0.3, pseudo_coverage=0.1),
        line(200, accuracy_average=70.0, pseudo_precision=0.4, pseudo_coverage=0.2),
        line(220, pseudo_precision=0.5, pseudo_coverage=0.3),
    ]
    (run,) = read_runs([write_folder(tmp_path / "a", log)])
    assert verdict(run) == (
        "fixmatch is learning digits from 40 labels, at step 220 of 1,000: after step 200 its averaged network is "
        "right on 70.00 % of 360 test images (95 % interval 65.1 to 74.5 %). At present, 50.0 % of the pseudo labels "
        "it learns from are right."
    )
    now = standing(run)
    assert (now.median, now.evaluations, now.seconds, now.coverage) == (60.0, 2, 22.0, 30.0)


def test_a_run_that_has_logged_nothing_is_told_too(tmp_path):
    (run,) = read_runs([write_folder(tmp_path / "a")])
    assert verdict(run) == (
        "fixmatch is learning digits from 40 labels, at step 0 of 1,000; its accuracy has not been measured yet."
    )


def test_the_labels_are_those_of_the_split_and_not_of_the_setting(tmp_path):
    other = write_folder(tmp_path / "other", data__labels=20)
    path = write_folder(tmp_path / "a")
    (path / "split.json").write_bytes((other / "split.json").read_bytes())
    assert standing(read_runs([path])[0]).labels == 20


def test_without_the_data_set_there_is_no_interval(tmp_path, monkeypatch):
    (run,) = read_runs([write_folder(tmp_path / "a", [], {})])
    monkeypatch.setattr(RunRecord, "data", missing)
    assert standing(run).interval is None
    assert verdict(run).endswith("its averaged network is right on 90.00 % of the test images.")


def missing(_: RunRecord) -> NoReturn:
    raise AggMatchError("digits is not in data.")


def test_several_runs_are_ranked_with_mean_and_deviation(tmp_path):
    paths = [
        write_folder(tmp_path / f"{method}{fold}", [], {"accuracy": accuracy}, method=method, data__fold=fold)
        for method, fold, accuracy in [("supervised", 0, 80.0), ("fixmatch", 0, 90.0), ("fixmatch", 1, 94.0)]
    ]
    runs = read_runs(paths)
    assert verdict_of_several(runs) == (
        "On digits, 40 labels, fixmatch is right on 92.00 ± 2.83 % (2 runs) of 360 test images, supervised on 80.00 %. "
        "Some are single runs: with other labels or another seed they may rank differently."
    )
    assert verdict_of_several(runs[:2]).endswith(
        "One run each: with other labels or another seed they may rank differently."
    )


def test_conditions_are_not_ranked_against_each_other(tmp_path):
    paths = [write_folder(tmp_path / "a", [], {}), write_folder(tmp_path / "b", [line(20)], data__labels=20)]
    assert verdict_of_several(read_runs(paths)) == (
        "On digits, 40 labels, fixmatch is right on 90.00 % of 360 test images. "
        "On digits, 20 labels, nothing has been measured yet."
    )


def test_the_median_is_of_twenty_evaluations_at_most(tmp_path):
    log = [line(step, accuracy_average=50.0, accuracy_online=50.0) for step in range(1, 24)]
    (few, many) = read_runs([write_folder(tmp_path / str(count), log[:count], {}) for count in (3, 23)])
    assert (standing(few).evaluations, standing(many).evaluations) == (3, 20)


def named_pairs(folder, *runs: tuple[str, int, float, float]) -> list[tuple[str, str]]:
    """Folders of the pairs among runs of a method on a fold with noise and of an accuracy."""
    paths = [
        write_folder(
            folder / f"{method}-{fold}-{accuracy:g}",
            [],
            {"accuracy": accuracy},
            method=method,
            data__fold=fold,
            data__noise="asymmetric" if noise else "none",
            data__noise_rate=noise,
            train__seed=number,
        )
        for number, (method, fold, noise, accuracy) in enumerate(runs)
    ]
    return [(first.path.name, second.path.name) for first, second in pairs(read_runs(paths))]


def test_only_runs_on_the_same_labels_are_paired(tmp_path):
    assert named_pairs(
        tmp_path,
        ("aggmatch", 1, 0.0, 99.0),
        ("aggmatch", 0, 0.0, 97.0),
        ("fixmatch", 0, 0.0, 94.0),
        ("fixmatch", 0, 0.5, 55.0),
        ("aggmatch", 0, 0.5, 70.0),
    ) == [("aggmatch-0-97", "fixmatch-0-94"), ("aggmatch-0-70", "fixmatch-0-55")]


def test_of_each_kind_the_highest_is_paired_whatever_the_order(tmp_path):
    runs = [("fixmatch", 0, 0.0, 80.0), ("fixmatch", 0, 0.0, 85.0), ("supervised", 0, 0.0, 90.0)]
    assert named_pairs(tmp_path / "a", *runs) == [("supervised-0-90", "fixmatch-0-85")]
    assert named_pairs(tmp_path / "b", *reversed(runs)) == [("supervised-0-90", "fixmatch-0-85")]


def test_of_draws_with_as_many_kinds_the_one_with_the_highest_accuracy_is_paired(tmp_path):
    runs = [(method, fold, 0.0, 80.0 + fold) for fold in range(3) for method in ("fixmatch", "supervised")]
    assert [first.split("-")[1] for first, _ in named_pairs(tmp_path, *runs)] == ["2"]


def test_runs_without_a_rival_or_a_result_are_not_paired(tmp_path):
    assert named_pairs(tmp_path, ("fixmatch", 0, 0.0, 80.0), ("supervised", 1, 0.0, 90.0)) == []
    paths = [write_folder(tmp_path / "open", []), write_folder(tmp_path / "done", [], {}, method="supervised")]
    assert list(pairs(read_runs(paths))) == []
