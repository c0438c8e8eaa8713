import pytest
from tests.folders import SUMMARY, line, write_folder

from aggmatch.report.warnings import warnings_of, warnings_of_several
from aggmatch.runs.stored import read_runs


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
        assert found[0].finding == "3: 42.0 %; the mean over classes is 85.20 %."


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
