"""Statistics that compare runs: intervals, medians, and pairs of runs on the same labels."""

import pytest
from scipy.stats import binomtest
from tests.folders import line, write_folder

from aggmatch.runs.stats import best_pairs, wilson
from aggmatch.runs.stored import read_runs


@pytest.mark.parametrize(("right", "images"), [(348, 360), (0, 10), (10, 10), (1, 2), (9_254, 10_000)])
def test_the_interval_is_wilsons(right, images):
    oracle = binomtest(right, images).proportion_ci(0.95, method="wilson")
    assert wilson(right, images) == pytest.approx((100 * oracle.low, 100 * oracle.high), abs=1e-4)


def test_the_median_is_taken_over_twenty_evaluations_at_most(tmp_path):
    log = [line(step, accuracy_average=float(step), accuracy_online=50.0) for step in range(1, 24)]
    few, many = read_runs([write_folder(tmp_path / str(count), log[:count], {}) for count in (3, 23)])
    assert few.median == (2.0, 3)
    assert many.median == (13.5, 20)


def named_pairs(folder, *runs: tuple[str, int, float, float]) -> list[tuple[str, str]]:
    """Folders of the pairs among runs, each a method, a fold, a noise rate and an accuracy."""
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
    return [(first.folder.path.name, second.folder.path.name) for first, second in best_pairs(read_runs(paths))]


def test_only_runs_on_the_same_labels_are_paired(tmp_path):
    assert named_pairs(
        tmp_path,
        ("aggmatch", 1, 0.0, 99.0),
        ("aggmatch", 0, 0.0, 97.0),
        ("fixmatch", 0, 0.0, 94.0),
        ("fixmatch", 0, 0.5, 55.0),
        ("aggmatch", 0, 0.5, 70.0),
    ) == [("aggmatch-0-97", "fixmatch-0-94"), ("aggmatch-0-70", "fixmatch-0-55")]


def test_the_best_run_of_each_group_is_paired_in_any_order(tmp_path):
    runs = [("fixmatch", 0, 0.0, 80.0), ("fixmatch", 0, 0.0, 85.0), ("supervised", 0, 0.0, 90.0)]
    assert named_pairs(tmp_path / "a", *runs) == [("supervised-0-90", "fixmatch-0-85")]
    assert named_pairs(tmp_path / "b", *reversed(runs)) == [("supervised-0-90", "fixmatch-0-85")]


def test_among_draws_with_equally_many_groups_the_one_with_the_best_run_is_paired(tmp_path):
    runs = [(method, fold, 0.0, 80.0 + fold) for fold in range(3) for method in ("fixmatch", "supervised")]
    assert [first.split("-")[1] for first, _ in named_pairs(tmp_path, *runs)] == ["2"]


def test_runs_without_a_rival_or_a_result_are_not_paired(tmp_path):
    assert named_pairs(tmp_path, ("fixmatch", 0, 0.0, 80.0), ("supervised", 1, 0.0, 90.0)) == []
    paths = [write_folder(tmp_path / "open", []), write_folder(tmp_path / "done", [], {}, method="supervised")]
    assert list(best_pairs(read_runs(paths))) == []
