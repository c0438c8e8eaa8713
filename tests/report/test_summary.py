from typing import NoReturn

import pytest
from tests.folders import line, write_folder

from aggmatch.errors import AggMatchError
from aggmatch.report import summary
from aggmatch.report.summary import Other, charts, interval_of, verdict, verdict_of_several
from aggmatch.runs.folder import RunFolder
from aggmatch.runs.stats import wilson
from aggmatch.runs.stored import StoredRun, read_runs


def test_the_verdict_of_a_finished_run_gives_the_result_in_its_summary(tmp_path):
    result = {"accuracy": 348 / 3.6, "pseudo_precision": 0.9623, "pseudo_coverage": 0.99}
    (run,) = read_runs([write_folder(tmp_path / "a", [line(1000, accuracy_average=12.0)], result)])
    assert verdict(run) == (
        "fixmatch with the paper recipe learned digits from 40 labels: after step 1,000 its averaged network is right "
        "on 96.67 % of 360 test images (95 % interval 94.3 to 98.1 %). At the end, 96.2 % of the pseudo labels it "
        "learned from were right."
    )


def test_the_verdict_leaves_out_pseudo_labels_that_a_method_does_not_make(tmp_path):
    (run,) = read_runs([write_folder(tmp_path / "a", [], {}, method="supervised")])
    assert verdict(run).endswith("(95 % interval 86.5 to 92.7 %).")


def test_the_verdict_gives_the_estimated_accuracy(tmp_path):
    (run,) = read_runs([path := write_folder(tmp_path / "a", [], {}, method="supervised")])
    RunFolder(path).write_estimate({"accuracy": 80.4, "low": 69.6, "high": 90.0})
    estimated = "It is estimated to be right on 80 % of the images without a label (95 % interval 70 to 90 %)."
    assert verdict(run).endswith(estimated)


def test_the_verdict_leaves_out_the_precision_if_no_pseudo_label_counted(tmp_path):
    (run,) = read_runs([write_folder(tmp_path / "a", [], {"pseudo_precision": 0.0, "pseudo_coverage": 0.0})])
    assert "pseudo labels" not in verdict(run)


def test_the_verdict_of_an_unfinished_run_gives_its_last_log_lines(tmp_path):
    log = [
        line(100, accuracy_average=50.0, pseudo_precision=0.3, pseudo_coverage=0.1),
        line(200, accuracy_average=70.0, pseudo_precision=0.4, pseudo_coverage=0.2),
        line(220, pseudo_precision=0.5, pseudo_coverage=0.3),
    ]
    (run,) = read_runs([write_folder(tmp_path / "a", log)])
    assert verdict(run) == (
        "fixmatch with the paper recipe is learning digits from 40 labels, at step 220 of 1,000: after step 200 its "
        "averaged network is right on 70.00 % of 360 test images (95 % interval 65.1 to 74.5 %). At present, 50.0 % "
        "of the pseudo labels it learns from are right."
    )


def test_a_run_without_any_log_line_has_a_verdict(tmp_path):
    (run,) = read_runs([write_folder(tmp_path / "a")])
    assert verdict(run) == (
        "fixmatch with the paper recipe is learning digits from 40 labels, at step 0 of 1,000; "
        "its accuracy has not been measured yet."
    )


def test_the_number_of_labels_comes_from_the_split_and_not_from_the_setting(tmp_path):
    other = write_folder(tmp_path / "other", data__labels=20)
    path = write_folder(tmp_path / "a")
    (path / "split.json").write_bytes((other / "split.json").read_bytes())
    assert "from 20 labels" in verdict(read_runs([path])[0])


def test_without_the_data_set_there_is_no_interval(tmp_path, monkeypatch):
    runs = read_runs([write_folder(tmp_path / "a", [], {}), write_folder(tmp_path / "b", [], {}, method="uda")])
    monkeypatch.setattr(StoredRun, "data", missing)
    assert verdict(runs[0]).endswith("its averaged network is right on 90.00 % of the test images.")
    (chart,) = charts(runs)
    assert [(bar.range, bar.text) for bar in chart.bars] == [(None, "one run")] * 2


def missing(_: StoredRun) -> NoReturn:
    raise AggMatchError("digits is not in data.")


def test_the_interval_counts_whole_images():
    assert interval_of(348 / 3.6, 360) == wilson(348, 360)
    assert summary.correct(96.67, 360) == 348
    assert interval_of(None, 360) is None
    assert interval_of(90.0, None) is None


def compared(folder, *results: tuple[str, int, float], others: tuple[Other, ...] = ()) -> list[summary.Chart]:
    """Charts of finished runs, each a method, a fold and an accuracy."""
    paths = [
        write_folder(folder / f"{method}{fold}", [], {"accuracy": accuracy}, method=method, data__fold=fold)
        for method, fold, accuracy in results
    ]
    return charts(read_runs(paths), others)


def test_several_runs_are_ranked_by_their_mean_with_the_lead_of_the_best(tmp_path):
    found = compared(tmp_path, ("supervised", 0, 80.0), ("fixmatch", 0, 90.0), ("fixmatch", 1, 94.0))
    assert verdict_of_several(found) == (
        "fixmatch is right on 92.00 ± 2.83 % (2 runs) of 360 test images, 12.00 points more than supervised (80.00 %, "
        "from the labels alone). All these runs have the paper recipe. Some are single runs: other labels or another "
        "seed may change the order."
    )


def test_the_lead_over_the_second_and_over_the_baseline_is_named(tmp_path):
    found = compared(tmp_path, ("supervised", 0, 70.0), ("fixmatch", 0, 85.0), ("aggmatch", 0, 95.0), ("uda", 0, 80.0))
    assert verdict_of_several(found) == (
        "aggmatch is right on 95.00 % of 360 test images, 10.00 points more than fixmatch (85.00 %) and 25.00 points "
        "more than supervised (70.00 %, from the labels alone). All these runs have the paper recipe. Each is a single "
        "run: other labels or another seed may change the order."
    )


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ([("uda", 0, 90.0), ("fixmatch", 0, 91.0)], "Each is a single run and the intervals of the first two overlap:"),
        ([("uda", 0, 60.0), ("fixmatch", 0, 91.0)], "Each is a single run: other labels"),
        ([("uda", fold, 90.0 + fold) for fold in (0, 1)] + [("fixmatch", 0, 80.0)], "Some are single runs: other"),
        (
            [(method, fold, base + fold) for method, base in (("uda", 80.0), ("fixmatch", 90.0)) for fold in (0, 1)],
            "The lead is larger than the spread over folds and seeds",
        ),
        (
            [(method, fold, base + 4 * fold) for method, base in (("uda", 80.0), ("paws", 83.0)) for fold in (0, 1)],
            "The lead is within the spread over folds and seeds",
        ),
    ],
)
def test_the_verdict_says_how_far_to_trust_the_order(tmp_path, results, words):
    assert words in verdict_of_several(compared(tmp_path, *results))


def test_runs_of_one_group_are_not_ranked(tmp_path):
    found = compared(tmp_path, ("fixmatch", 0, 90.0), ("fixmatch", 1, 94.0))
    assert verdict_of_several(found) == (
        "fixmatch is right on 92.00 ± 2.83 % (2 runs) of 360 test images. All these runs have the paper recipe."
    )


def test_recipes_that_differ_are_named_with_the_runs(tmp_path):
    paths = [
        write_folder(tmp_path / recipe, [], {"accuracy": accuracy}, recipe=recipe)
        for recipe, accuracy in (("paper", 80.0), ("cold-start", 90.0))
    ]
    said = verdict_of_several(charts(read_runs(paths)))
    assert said.startswith("fixmatch, cold-start recipe is right on 90.00 %")
    assert "more than fixmatch, paper recipe (80.00 %)" in said
    assert "runs have" not in said
    paths = [
        write_folder(tmp_path / f"{recipe}-{labels}", [], {}, recipe=recipe, data__labels=labels)
        for recipe, labels in (("paper", 20), ("cold-start", 30))
    ]
    said = verdict_of_several(charts(read_runs(paths)))
    assert "Those on digits, 20 labels have the paper recipe. Those on digits, 30 labels have the cold-start" in said


def test_equal_accuracies_are_not_called_a_lead(tmp_path):
    found = compared(tmp_path, ("fixmatch", 0, 90.0), ("uda", 0, 90.0))
    assert "90.00 % of 360 test images, as many as uda (90.00 %)." in verdict_of_several(found)


def test_the_order_of_runs_that_still_train_is_preliminary(tmp_path):
    paths = [
        write_folder(tmp_path / "a", [line(20, accuracy_average=80.0)]),
        write_folder(tmp_path / "b", [], {"accuracy": 50.0}, method="supervised"),
    ]
    found = charts(read_runs(paths))
    assert [bar.text.split("; ")[1:] for bar in found[0].bars] == [["still training"], []]
    assert "of 360 test images so far, 30.00 points more" in verdict_of_several(found)
    assert verdict_of_several(found).endswith("Some runs are still training, so the order may change.")


def test_conditions_are_not_ranked_against_each_other(tmp_path):
    paths = [write_folder(tmp_path / "a", [], {}), write_folder(tmp_path / "b", [line(20)], data__labels=20)]
    assert verdict_of_several(charts(read_runs(paths))) == (
        "On digits, 40 labels, fixmatch is right on 90.00 % of 360 test images. "
        "On digits, 20 labels, nothing has been measured yet. All these runs have the paper recipe."
    )
    assert verdict_of_several(charts(read_runs(paths[1:]))) == "Nothing has been measured yet."


def test_a_bar_has_the_interval_of_a_single_run_and_the_deviation_of_several(tmp_path):
    (chart,) = compared(tmp_path, ("supervised", 0, 90.0), ("fixmatch", 0, 99.0), ("fixmatch", 1, 100.0))
    several, single = chart.bars
    assert several.range == pytest.approx((99.5 - 0.5**0.5, 100.0))
    assert several.text == "± 0.71 over 2 runs"
    assert single.range == wilson(324, 360)
    assert single.text == "95 % interval 86.5 to 92.7 %"


def test_a_result_that_is_not_a_run_is_ranked_and_named_as_such(tmp_path):
    found = compared(tmp_path, ("fixmatch", 0, 90.0), ("supervised", 0, 70.0), others=(("LabelSpreading", 79.17),))
    (chart,) = found
    assert [bar.name for bar in chart.bars] == ["fixmatch", "LabelSpreading", "supervised"]
    assert chart.bars[1].run is None
    assert chart.bars[1].text == "95 % interval 74.7 to 83.0 %; not a run of aggmatch"
    assert "10.83 points more than LabelSpreading (79.17 %)" in verdict_of_several(found)


def test_only_the_first_condition_holds_results_that_are_not_runs(tmp_path):
    paths = [write_folder(tmp_path / "a", [], {}), write_folder(tmp_path / "b", [], {}, data__labels=20)]
    found = charts(read_runs(paths), [("other", 50.0)])
    assert [[bar.name for bar in chart.bars] for chart in found] == [["fixmatch", "other"], ["fixmatch"]]
