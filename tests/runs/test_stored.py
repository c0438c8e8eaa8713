"""Runs read from their folders, and the names that tell them apart."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.folders import SUMMARY, line, write_folder

from aggmatch.config import Layer
from aggmatch.errors import AggMatchError
from aggmatch.runs.stats import Length, Median, best_pairs, conditions, first_of_groups, grouped
from aggmatch.runs.stored import StoredRun, find_runs, most_complete, read_run, read_runs, snapshot_step


def named(*folders: Path) -> list[str]:
    return [run.name for run in read_runs(folders)]


@pytest.fixture(scope="module")
def old_run() -> StoredRun:
    """A finished run that version 0.1 wrote."""
    return read_runs([Path(__file__).parents[1] / "fixtures/runs-0.1/finished"])[0]


def test_a_finished_run_is_read_completely(old_run: StoredRun):
    assert old_run.name == f"aggmatch fold {old_run.fold}"
    assert old_run.method == "aggmatch"
    assert old_run.records[-1]["step"] == old_run.steps == 60
    assert old_run.summary is not None
    assert old_run.accuracy == old_run.summary["accuracy"]
    assert old_run.length == Length(True, 60, 60)
    assert old_run.median == Median(old_run.summary["accuracy_median_of_last_20"], len(old_run.evaluations))
    assert [snapshot_step(path) for path in old_run.snapshots] == [6, 30, 60]
    assert old_run.data().name == "digits"
    assert len(old_run.split().labeled) == old_run.labels
    assert old_run.describe() == f"aggmatch (paper recipe) on digits, {old_run.labels} labels, fold {old_run.fold}"


def test_an_unfinished_run_has_the_accuracy_of_its_last_evaluation(tmp_path):
    evaluated = [line(step, accuracy_average=float(step), accuracy_online=1.0) for step in (100, 200)]
    run = read_run(write_folder(tmp_path / "run", [*evaluated, line(220)]))
    assert (run.finished, run.steps, run.accuracy, run.class_accuracy) == (False, 220, 200.0, {})
    assert run.length == Length(False, 200, 1000)
    assert run.median == Median(150.0, 2)
    assert run.seconds == 22.0


def test_an_evaluation_takes_pseudo_label_values_of_its_own_step_or_the_nearest(tmp_path):
    def pseudo(precision):
        return {"pseudo_precision": precision, "pseudo_recall": 0.2, "pseudo_coverage": 0.3}

    evaluated = {"accuracy_average": 50.0, "accuracy_online": 49.0}
    records = [
        line(10, **pseudo(0.1)),
        line(18, **evaluated),
        line(20, **pseudo(0.2)),
        line(30, **evaluated, **pseudo(0.3)),
    ]
    run = read_run(write_folder(tmp_path / "run", records))
    assert run.curve == [
        {"step": 18, **evaluated, **pseudo(0.2), "seconds": 1.8},
        {"step": 30, **evaluated, **pseudo(0.3), "seconds": 3.0},
    ]
    assert run.pseudo_labels("precision") == pytest.approx(30.0)


def test_the_time_to_an_accuracy_is_that_of_the_first_evaluation_that_had_it(tmp_path):
    accuracies = {600: 40.0, 1200: 70.0, 1800: 60.0, 2400: 80.0}
    records = [line(step, accuracy_average=value, accuracy_online=99.0) for step, value in accuracies.items()]
    run = read_run(write_folder(tmp_path / "run", records))
    assert [run.minutes_to(percent) for percent in (40, 65, 70, 75, 80.5)] == [1, 2, 2, 4, None]
    untimed = replace(run, records=[{"step": 1, "accuracy_average": 90.0}])
    assert untimed.minutes_to(50) is None, "lines of older results files have no times"


def test_an_evaluation_of_one_network_only_is_no_point_of_the_curve(tmp_path):
    assert read_run(write_folder(tmp_path / "run", [line(1, accuracy_average=50.0)])).curve == []


def test_of_two_versions_of_a_run_the_most_complete_is_taken(tmp_path):
    early = read_run(write_folder(tmp_path / "early", [line(10)]))
    late = read_run(write_folder(tmp_path / "late", [line(20)]))
    other = read_run(write_folder(tmp_path / "other", data__fold=1))
    for order in ([early, late, other], [late, early, other]):
        assert most_complete(order) == [late, other]


def test_a_slow_computation_is_cached(old_run: StoredRun):
    values = iter(range(2))
    assert [old_run.once("key", lambda: next(values)) for _ in range(2)] == [0, 0]


def test_runs_are_found_by_their_folder_or_a_folder_above_it(tmp_path):
    paths = [write_folder(tmp_path / "runs" / name) for name in ("a", "b", "c")]
    assert find_runs([tmp_path]) == paths
    assert find_runs([paths[2], tmp_path / "runs"]) == [paths[2], *paths[:2]]
    with pytest.raises(AggMatchError, match="empty"):
        find_runs([tmp_path / "empty"])


def test_a_run_that_has_just_begun_has_nothing_to_show_yet(tmp_path):
    (run,) = read_runs([write_folder(tmp_path / "run")])
    assert (run.records, run.summary, run.snapshots) == ([], None, [])
    (tmp_path / "run/metrics.jsonl").unlink()
    assert read_runs([tmp_path / "run"])[0].records == []


def test_a_folder_without_a_run_is_an_error(tmp_path):
    with pytest.raises(AggMatchError, match=r"config\.json"):
        read_runs([tmp_path])


def test_a_folder_given_twice_is_read_once_in_its_first_place(tmp_path):
    one = write_folder(tmp_path / "one")
    two = write_folder(tmp_path / "two", data__fold=1)
    assert [run.path for run in read_runs([two, one, tmp_path / "one/../two"])] == [two, one]


def test_changes_set_where_a_stored_run_computes(tmp_path):
    folder = write_folder(tmp_path / "run")
    (run,) = read_runs([folder], [Layer("the test", {"runtime.data_dir": "elsewhere"})])
    assert run.settings.runtime.data_dir == "elsewhere"


def test_names_contain_what_differs_and_nothing_else(tmp_path):
    plain = write_folder(tmp_path / "a")
    other = write_folder(tmp_path / "b", method="aggmatch")
    assert named(plain, other) == ["fixmatch fold 0", "aggmatch fold 0"]
    fold = write_folder(tmp_path / "c", data__fold=2)
    assert named(plain, fold) == ["fixmatch fold 0", "fixmatch fold 2"]
    labels = write_folder(tmp_path / "d", data__labels=100)
    assert named(plain, labels) == ["fixmatch, 40 labels, fold 0", "fixmatch, 100 labels, fold 0"]
    ablation = write_folder(tmp_path / "e", method="aggmatch", method__refine=False)
    assert named(plain, other, ablation) == ["fixmatch fold 0", "aggmatch fold 0", "aggmatch, refine false, fold 0"]
    assert named(plain, ablation) == ["fixmatch fold 0", "aggmatch fold 0"]
    both = [write_folder(tmp_path / str(tau), method__threshold=tau) for tau in (0.8, 0.9)]
    assert named(*both) == ["fixmatch, threshold 0.8, fold 0", "fixmatch, threshold 0.9, fold 0"]


def test_names_describe_noise_in_words(tmp_path):
    clean = write_folder(tmp_path / "clean")
    noise: dict[str, Any] = {"data__noise": "asymmetric", "data__noise_rate": 0.25, "data__noise_map": ["2>7", "7>1"]}
    noisy = write_folder(tmp_path / "noisy", **noise)
    symmetric = write_folder(tmp_path / "symmetric", data__noise="symmetric", data__noise_rate=0.25)
    assert named(clean, noisy, symmetric) == [
        "fixmatch fold 0",
        "fixmatch, 25 % asymmetric noise, fold 0",
        "fixmatch, 25 % symmetric noise, fold 0",
    ]
    other_map = write_folder(tmp_path / "other", **noise | {"data__noise_map": ["1>7"]})
    assert named(noisy, other_map)[1] == "fixmatch, noise_map ['1>7'], fold 0"
    assert list(conditions(read_runs([clean, noisy]))) == [
        "digits, 40 labels",
        "digits, 40 labels, 25 % asymmetric noise",
    ]


def test_runs_of_equal_settings_are_distinguished_by_their_folders(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    alike = [write_folder(tmp_path / name) for name in ("one", "two")]
    assert named(*alike) == ["fixmatch fold 0 (one)", "fixmatch fold 0 (two)"]
    same_name = [write_folder(tmp_path / place / "run") for place in ("x", "y")]
    assert len(set(named(*same_name))) == 2


def test_labels_and_fold_are_those_of_a_given_split(tmp_path):
    given = write_folder(tmp_path / "given", data__labels=100, data__fold=3)
    folder = write_folder(tmp_path / "run", data__split=str(given / "split.json"))
    (folder / "split.json").write_text((given / "split.json").read_text())
    (run,) = read_runs([folder])
    assert run.describe() == "fixmatch (paper recipe) on digits, 100 labels, fold 3"
    assert named(folder, write_folder(tmp_path / "drawn"))[0].startswith("fixmatch, 100 labels")


def test_folds_make_a_group_and_the_first_represents_it(tmp_path):
    folders = [write_folder(tmp_path / str(fold), data__fold=fold) for fold in (1, 0)]
    runs = read_runs([*folders, write_folder(tmp_path / "a", method="aggmatch")])
    assert {name: len(group) for name, group in grouped(runs).items()} == {"fixmatch": 2, "aggmatch": 1}
    assert [run.name for run in first_of_groups(runs)] == ["fixmatch fold 1", "aggmatch fold 0"]


def test_runs_on_the_same_data_share_it(tmp_path):
    first, second = read_runs([write_folder(tmp_path / name, data__fold=fold) for fold, name in enumerate("ab")])
    assert first.data() is second.data()


def test_the_best_run_is_paired_with_the_best_of_every_other_group(tmp_path):
    folders = [write_folder(tmp_path / "f", [], {"accuracy": 80.0}), write_folder(tmp_path / "u", method="uda")]
    folders.append(write_folder(tmp_path / "a", [], {"accuracy": 90.0}, method="aggmatch"))
    pairs = [(first.method, second.method) for first, second in best_pairs(read_runs(folders))]
    assert pairs == [("aggmatch", "fixmatch")], "uda is not finished"


@pytest.mark.parametrize("download", [False, True])
def test_missing_files_of_the_data_are_fetched_only_on_request(tmp_path, monkeypatch, download):
    asked = []
    monkeypatch.setattr("aggmatch.settings.load_for", lambda *given, **_: asked.append(given))
    folder = write_folder(tmp_path / "run", runtime__data_dir=str(tmp_path))
    (run,) = read_runs([folder], download=download)
    run.data()
    assert asked == [(run.settings.data, str(tmp_path), download)]


def test_code_that_a_folder_names_is_imported_only_if_it_is_allowed(tmp_path):
    (tmp_path / "mine.py").write_text("from aggmatch.methods.fixmatch import FixMatch\n\nMine = FixMatch\n")
    name = f"{tmp_path / 'mine.py'}:Mine"
    folder = write_folder(tmp_path / "run", method=name)
    with pytest.raises(AggMatchError, match=r"allow=\["):
        read_run(folder)
    assert read_run(folder, allow=[name]).method == "mine.Mine"


def test_a_corrupt_log_is_named(tmp_path):
    folder = write_folder(tmp_path / "run", [line(1)])
    (folder / "metrics.jsonl").write_text('{"step": \n{"step": 2}\n')
    with pytest.raises(AggMatchError, match=r"metrics\.jsonl, line 1"):
        read_runs([folder])


SPLIT = {"format": 1, "data": "digits", "classes": 10, "fold": 0, "images": 1437, "labeled": [1], "labels": [1]}
SPLIT |= {"unlabeled": "all"}


@pytest.mark.parametrize(
    ("name", "content", "key"),
    [
        ("summary.json", {"accuracy": 3}, "accuracy_average"),
        ("summary.json", SUMMARY | {"class_accuracy": 7}, "class_accuracy"),
        ("split.json", SPLIT | {"labeled": 5}, "labeled"),
        ("split.json", SPLIT | {"fold": "x"}, "fold"),
        ("split.json", SPLIT | {"fold": None}, "fold"),
        ("split.json", {"labeled": [1]}, "fold"),
        ("split.json", SPLIT | {"digest": "0"}, "edited"),
    ],
)
def test_a_corrupt_summary_or_split_is_named(tmp_path, name, content, key):
    folder = write_folder(tmp_path / "run", [line(1)], {})
    (folder / name).write_text(json.dumps(content))
    with pytest.raises(AggMatchError, match=rf"{name}: .*{key}"):
        read_runs([folder])
