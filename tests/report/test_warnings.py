import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from tests.folders import SUMMARY, line, write_folder

from aggmatch.data import Images
from aggmatch.evaluation import Evaluation
from aggmatch.report import summary
from aggmatch.report.test_results import PREDICTIONS
from aggmatch.report.warnings import warnings_of, warnings_of_several
from aggmatch.runs.stored import StoredRun, read_runs


def titles(path) -> list[str]:
    return [warning.title for warning in warnings_of(read_runs([path])[0])]


def test_a_good_run_has_no_warning(tmp_path):
    log = [
        line(20 * n, pseudo_precision=0.5 + n / 200, pseudo_coverage=0.9, queue_fill=[64] * 10) for n in range(1, 51)
    ]
    assert titles(write_folder(tmp_path / "a", log, {}, method="aggmatch")) == []


def test_the_warning_about_an_unfinished_run_has_the_command_that_continues_it(tmp_path):
    path = write_folder(tmp_path / "my run", [line(300)])
    (warning,) = warnings_of(read_runs([path])[0])
    assert warning.title == "The run is not finished"
    assert "300 of 1,000 steps" in warning.finding
    assert warning.command == f"aggmatch train --resume --out '{path}'"


@pytest.mark.parametrize(("accuracy", "fires"), [(42.0, True), (43.0, False)])
def test_a_class_below_half_of_the_mean_gives_a_warning(tmp_path, accuracy, fires):
    by_class = SUMMARY["class_accuracy"] | {"3": accuracy}  # half of the mean is 42.6 and 42.65
    found = list(warnings_of(read_runs([write_folder(tmp_path / "a", [], {"class_accuracy": by_class})])[0]))
    assert [warning.title for warning in found] == (["A class is hardly recognised"] if fires else [])
    if fires:
        assert found[0].finding == "3: 15 of 36; the mean over classes is 85.20 %."


@pytest.mark.parametrize(
    ("precision", "coverage", "fires"), [(0.11, 0.95, True), (0.39, 0.6, True), (0.41, 0.95, False), (0.1, 0.5, False)]
)
def test_a_method_that_is_sure_before_it_is_right_gives_a_warning(tmp_path, precision, coverage, fires):
    log = [line(20, pseudo_precision=precision, pseudo_coverage=coverage), line(40, pseudo_coverage=0.0)]
    found = list(warnings_of(read_runs([write_folder(tmp_path / "a", log, {})])[0]))
    assert [warning.title for warning in found] == (["Sure before it is right"] if fires else [])
    if fires:
        assert "step 20" in found[0].finding
        assert "--recipe cold-start" in found[0].advice


@pytest.mark.parametrize(("auc", "words"), [(0.52, "hardly tells right from wrong"), (0.81, "weight tells right")])
def test_the_warning_says_whether_the_weight_tells_right_from_wrong(tmp_path, auc, words):
    logged = {"pseudo_auc": auc, "pseudo_precision_by_weight": [0.1] * 9 + [0.3], "pseudo_class_share": [0.1] * 10}
    log = [line(20, pseudo_precision=0.2, pseudo_coverage=0.9, **logged)]
    (warning,) = warnings_of(read_runs([write_folder(tmp_path / "a", log, {})])[0])
    assert words in warning.finding
    assert "largest weights, 30 % are right" in warning.finding
    assert "on one of" not in warning.finding
    assert ("method.threshold" in warning.advice) == (auc > 0.7)


def test_the_warning_recommends_the_recipe_only_to_methods_that_have_it(tmp_path):
    log = [line(20, pseudo_precision=0.1, pseudo_coverage=1.0)]
    for method, recommended in (("fixmatch", True), ("mixmatch", False)):
        (warning,) = warnings_of(read_runs([write_folder(tmp_path / method, log, {}, method=method)])[0])
        assert ("Try --recipe cold-start" in warning.advice) == recommended


@pytest.mark.parametrize("recipe", ["cold-start", "neighbours"])
def test_the_warning_does_not_recommend_a_start_to_a_run_that_has_one(tmp_path, recipe):
    log = [line(20, pseudo_precision=0.1, pseudo_coverage=1.0)]
    path = write_folder(tmp_path / "a", log, {}, method="fixmatch", recipe=recipe)
    (warning,) = warnings_of(read_runs([path])[0])
    assert "--recipe" not in warning.advice
    assert "--tries 3" in warning.advice


def test_the_warning_names_a_class_that_has_most_of_the_weight(tmp_path):
    log = [line(20, pseudo_precision=0.2, pseudo_coverage=0.9, pseudo_class_share=[0.05, 0.05, 0.1, 0.8, *[0.0] * 6])]
    (warning,) = warnings_of(read_runs([write_folder(tmp_path / "a", log, {})])[0])
    assert "80 % of the weight is on one of 10 classes" in warning.finding


def precisions(*values: tuple[float, float]) -> list[dict[str, object]]:
    """Twenty lines of the log for each pair of precision and coverage."""
    pairs = [pair for pair in values for _ in range(20)]
    return [line(n + 1, pseudo_precision=pair[0], pseudo_coverage=pair[1]) for n, pair in enumerate(pairs)]


@pytest.mark.parametrize(
    ("log", "fires"),
    [
        (precisions((0.9, 0.9), (0.7, 0.9)), True),
        (precisions((0.9, 0.9), (0.87, 0.9)), False),
        (precisions((0.7, 0.9), (0.9, 0.9)), False),
        (precisions((0.99, 0.1), (0.9, 0.9)), False),  # a few sure ones first, then many
        (precisions((0.9, 0.9), (0.7, 0.9))[:9], False),  # too short to tell
        ([], False),
    ],
)
def test_falling_precision_gives_a_warning(tmp_path, log, fires):
    found = titles(write_folder(tmp_path / "a", log, {}))
    assert found == (["Pseudo labels got worse during training"] if fires else [])


@pytest.mark.parametrize(
    ("fill", "changes", "fires"),
    [([64] * 9 + [63], {}, True), ([64] * 10, {}, False), ([640], {"method__class_balanced": False}, False)],
)
def test_rings_that_never_filled_give_a_warning(tmp_path, fill, changes, fires):
    path = write_folder(tmp_path / "a", [line(1000, queue_fill=fill)], {}, method="aggmatch", **changes)
    assert titles(path) == (["Part of the queue never filled"] if fires else [])
    if fires:
        (warning,) = warnings_of(read_runs([path])[0])
        assert "1 of 10 ended with fewer images: 9: 63." in warning.finding


def test_a_queue_that_may_still_fill_gives_no_warning(tmp_path):
    path = write_folder(tmp_path / "a", [line(20, queue_fill=[1] * 10)], method="aggmatch")
    assert titles(path) == ["The run is not finished"]


@pytest.mark.parametrize(("steps", "fires"), [(999, True), (1000, False), (2000, False)])
def test_fewer_steps_than_the_recipe_give_a_warning(tmp_path, steps, fires):
    path = write_folder(tmp_path / "a", [], {"steps": steps}, train__steps=steps)
    assert titles(path) == (["Shorter than the recipe"] if fires else [])


@pytest.mark.parametrize(
    ("online", "evaluated", "fires"), [(92.5, "average", True), (91.5, "average", False), (99.0, "online", False)]
)
def test_an_average_that_lags_behind_gives_a_warning(tmp_path, online, evaluated, fires):
    path = write_folder(tmp_path / "a", [], {"accuracy_online": online}, train__evaluated=evaluated)
    assert titles(path) == (["The averaged network lags behind"] if fires else [])


@pytest.mark.parametrize(("accuracy", "fires"), [(79.9, True), (80.1, False)])
def test_a_method_below_the_baseline_gives_a_warning(tmp_path, accuracy, fires):
    paths = [
        write_folder(tmp_path / "s", [], {"accuracy": 80.0}, method="supervised"),
        write_folder(tmp_path / "f", [], {"accuracy": accuracy}),
    ]
    found = list(warnings_of_several(read_runs(paths)))
    assert [warning.title for warning in found] == (["Unlabelled images did not help"] if fires else [])
    if fires:
        assert "reaches 80.00 %, more than fixmatch with 79.90 %" in found[0].finding


METHOD = """
from aggmatch import Method
from aggmatch.config import Settings

class Mine(Method[Settings]):
    baseline = {baseline}

    @classmethod
    def memory_slots(cls, config, classes):
        return [5] * classes
"""


@pytest.mark.parametrize("baseline", [True, False])
def test_a_method_says_itself_that_it_is_a_baseline(tmp_path, baseline):
    name = f"{tmp_path / f'method_{baseline}.py'}:Mine"
    (tmp_path / f"method_{baseline}.py").write_text(METHOD.format(baseline=baseline))
    paths = [
        write_folder(tmp_path / "m", [], {"accuracy": 80.0}, method=name),
        write_folder(tmp_path / "f", [], {"accuracy": 70.0}),
    ]
    found = list(warnings_of_several(read_runs(paths, allow=[name])))
    assert [warning.title for warning in found] == (["Unlabelled images did not help"] if baseline else [])


@pytest.mark.parametrize(("fill", "fires"), [([5] * 10, False), ([5] * 9 + [4], True), ([4], False)])
def test_a_method_says_itself_how_many_slots_its_memory_has(tmp_path, fill, fires):
    name = f"{tmp_path / 'method.py'}:Mine"
    (tmp_path / "method.py").write_text(METHOD.format(baseline=False))
    path = write_folder(tmp_path / "a", [line(1000, queue_fill=fill)], {}, method=name)
    (run,) = read_runs([path], allow=[name])
    assert [warning.title for warning in warnings_of(run)] == (["Part of the queue never filled"] if fires else [])


def test_runs_that_learn_from_different_labels_are_not_compared(tmp_path):
    paths = [
        write_folder(tmp_path / "s", [], {"accuracy": 80.0}, method="supervised"),
        write_folder(tmp_path / "f", [], {"accuracy": 70.0}, data__labels=20),
    ]
    assert [warning.title for warning in warnings_of_several(read_runs(paths))] == ["Not everything here is comparable"]


def test_long_lists_are_shortened(tmp_path):
    path = write_folder(tmp_path / "a", [line(1000, queue_fill=[1] * 10)], {}, method="aggmatch")
    (warning,) = warnings_of(read_runs([path])[0])
    assert warning.finding.endswith("7: 1 and 2 more.")


# Test images ---------------------------------------------------------------------------------------------------------


def with_tests(run: StoredRun, sizes: Sequence[int]) -> StoredRun:
    """The run on digits with so many test images of each class."""
    data, labels = run.data(), torch.arange(10).repeat_interleave(torch.tensor(sizes))
    few = Images(torch.zeros(len(labels), 1, 8, 8, dtype=torch.uint8), labels)
    run.data_sets.last = (run.data_sets.last[0], replace(data, test=few))  # type: ignore[index]
    run.drawn["test_fingerprint"] = run.data().test_fingerprint
    return run


@pytest.mark.parametrize(("images", "fires"), [(0, False), (1, False), (4, False), (5, True)])
def test_a_class_of_few_test_images_is_not_called_hardly_recognised(tmp_path, images, fires):
    by_class = SUMMARY["class_accuracy"] | {"3": 0.0}
    (run,) = read_runs([write_folder(tmp_path / "a", [], {"class_accuracy": by_class})])
    found = list(warnings_of(with_tests(run, [9, 9, 9, images, 9, 9, 9, 9, 9, 9])))
    assert [warning.title for warning in found] == (["A class is hardly recognised"] if fires else [])


def predictions(right: int, wrong: int, confidence: float) -> Evaluation:
    """Predictions of class 0 with one confidence, so many of them right."""
    probs = torch.full((right + wrong, 10), (1 - confidence) / 9)
    probs[:, 0] = confidence
    return Evaluation(probs, torch.tensor([0] * right + [1] * wrong))


@pytest.mark.parametrize(
    ("right", "wrong", "confidence", "named"),
    [
        (62, 38, 0.995, "100 test images that it predicts with a confidence of at least 0.99, 62 % are right"),
        (62, 38, 0.92, "at least 0.9, 62 % are right"),
        (95, 5, 0.995, ""),  # close enough
        (1, 1, 0.995, ""),  # two images mean nothing
        (62, 38, 0.7, ""),  # not sure
    ],
)
def test_sure_predictions_that_are_often_wrong_give_a_warning(tmp_path, right, wrong, confidence, named):
    (run,) = read_runs([write_folder(tmp_path / "a", [], {})])
    assert not list(warnings_of(run)), "nothing is predicted yet"
    run.once(PREDICTIONS, lambda: predictions(right, wrong, confidence))
    found = list(warnings_of(run))
    assert [warning.title for warning in found] == (["Confidence cannot be trusted"] if named else [])
    assert all(named in warning.finding for warning in found)


def test_test_images_that_changed_since_training_give_a_warning_and_no_interval(tmp_path):
    (run,) = read_runs([write_folder(tmp_path / "a", [], {})])
    run.drawn["test_fingerprint"] = "other"
    (found,) = warnings_of(run)
    assert found.title == "The test images have changed since training"
    assert "360 test images that are there now" in found.finding
    assert summary.test_images(run) is None, "the accuracy of the run is of another number"
    assert "90.00 % of the test images, which have changed since." in summary.verdict(run)


def test_a_short_run_on_own_images_is_not_compared_with_published_results(tmp_path):
    folder = write_folder(tmp_path / "a", [], {})
    config = json.loads((folder / "config.json").read_text())
    config["data"]["name"] = str(tmp_path / "photos")
    del config["digest"]
    (folder / "config.json").write_text(json.dumps(config))
    (run,) = read_runs([folder])
    (found,) = warnings_of(run)
    assert "publish" not in found.advice
    assert "1,000 steps; the default is " in found.finding


@pytest.mark.parametrize(
    ("method", "changes", "share", "fires"),
    [
        ("flexmatch", {}, 0.3, True),
        ("flexmatch", {}, 0.2, False),
        ("flexmatch", {"data.unlabeled_imbalance": 10.0}, 0.1, True),
        ("fixmatch", {}, 0.3, False),
        ("fixmatch", {"method.alignment": "uniform"}, 0.3, True),
        ("fixmatch_da", {}, 0.3, True),
        ("simmatch", {"method.alignment": "labels"}, 0.3, False),
        ("aggmatch", {"method.alignment": True, "method.alignment_steps": 0}, 0.3, True),
        ("aggmatch", {"method.alignment": True, "method.alignment_steps": 100}, 0.3, False),
        ("aggmatch", {"method.alignment": True, "method.alignment_target": "labels"}, 0.3, False),
        ("aggmatch", {"method.alignment": False}, 0.3, False),
        ("freematch", {"data.unlabeled_imbalance": 10.0}, 0.3, False),
    ],
)
def test_a_method_that_needs_even_classes_gives_a_warning_if_they_are_not(tmp_path, method, changes, share, fires):
    shares = [share, *[(1 - share) / 9] * 9]
    path = write_folder(tmp_path / "a", [line(1000, pseudo_class_share=shares)], {}, method=method, **changes)
    assert titles(path) == ["The method needs even classes"] * fires
