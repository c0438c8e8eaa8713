"""Run folders as analyses see them, and the names by which runs are told apart."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.folders import SUMMARY, line, write_folder

from aggmatch.config import Layer
from aggmatch.errors import AggMatchError
from aggmatch.runs.stored import RunRecord, conditions, first_folds, grouped, read_runs, snapshot_step


def named(*folders: Path) -> list[str]:
    return [run.name for run in read_runs(folders)]


def test_a_finished_run_is_read_whole(aggmatch_run: RunRecord):
    run = aggmatch_run
    assert run.name == "aggmatch fold 0"
    assert run.method == "aggmatch"
    assert run.records[-1]["step"] == 30
    assert run.summary is not None
    assert run.summary["steps"] == 30
    assert [snapshot_step(path) for path in run.snapshots] == [3, 15, 30]
    assert run.snapshot(run.snapshots[1]).step == 15
    assert run.data().name == "digits"
    assert len(run.split().labeled) == run.labels == 20
    assert run.describe() == "aggmatch on digits, 20 labels, fold 0"


def test_the_saved_model_is_the_one_of_the_summary(aggmatch_run: RunRecord):
    assert aggmatch_run.summary is not None
    result = aggmatch_run.model().evaluate(aggmatch_run.data())
    assert result.accuracy == pytest.approx(aggmatch_run.summary["accuracy"])


def test_a_run_that_has_just_begun_has_nothing_to_show_yet(tmp_path):
    (run,) = read_runs([write_folder(tmp_path / "run")])
    assert (run.records, run.summary, run.snapshots) == ([], None, [])
    (tmp_path / "run/metrics.jsonl").unlink()
    assert read_runs([tmp_path / "run"])[0].records == []


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(AggMatchError, match="is not the folder of a run: it has no config.json."):
        read_runs([tmp_path])


def test_a_folder_given_twice_is_read_once_in_its_first_place(tmp_path):
    one = write_folder(tmp_path / "one")
    two = write_folder(tmp_path / "two", data__fold=1)
    assert [run.path for run in read_runs([two, one, tmp_path / "one/../two"])] == [two, one]


def test_changes_touch_where_analyses_run(tmp_path):
    folder = write_folder(tmp_path / "run")
    (run,) = read_runs([folder], [Layer("the test", {"runtime.data_dir": "elsewhere"})])
    assert run.settings.runtime.data_dir == "elsewhere"


def test_names_tell_what_differs_and_nothing_else(tmp_path):
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


def test_names_tell_noise_in_words(tmp_path):
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


def test_runs_of_equal_settings_are_told_apart_by_their_folders(tmp_path):
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
    assert run.describe() == "fixmatch on digits, 100 labels, fold 3"
    assert named(folder, write_folder(tmp_path / "drawn"))[0].startswith("fixmatch, 100 labels")


def test_folds_make_a_group_and_the_first_stands_for_it(tmp_path):
    folders = [write_folder(tmp_path / str(fold), data__fold=fold) for fold in (1, 0)]
    runs = read_runs([*folders, write_folder(tmp_path / "a", method="aggmatch")])
    assert {name: len(group) for name, group in grouped(runs).items()} == {"fixmatch": 2, "aggmatch": 1}
    assert [run.name for run in first_folds(runs)] == ["fixmatch fold 1", "aggmatch fold 0"]


def test_runs_on_the_same_data_share_it(rivals: list[RunRecord]):
    assert rivals[0].data() is rivals[1].data()
    assert torch.equal(rivals[0].split().labeled, rivals[1].split().labeled)


@pytest.mark.parametrize("download", [False, True])
def test_missing_files_of_the_data_are_fetched_only_on_request(tmp_path, monkeypatch, download):
    asked = []
    monkeypatch.setattr("aggmatch.runs.stored.load", lambda *words, **options: asked.append((*words, options)))
    folder = write_folder(tmp_path / "run", runtime__data_dir=str(tmp_path))
    read_runs([folder], download=download)[0].data()
    assert asked == [("digits", tmp_path, download, {"side": 32, "holdout": 0.2})]


def test_a_damaged_log_is_named(tmp_path):
    folder = write_folder(tmp_path / "run", [line(1)])
    (folder / "metrics.jsonl").write_text('{"step": \n{"step": 2}\n')
    with pytest.raises(AggMatchError, match="metrics.jsonl, line 1: it is not JSON."):
        read_runs([folder])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("summary.json", {"accuracy": 3}, "it lacks accuracy_average, "),
        ("summary.json", SUMMARY | {"class_accuracy": 7}, "class_accuracy must be a table, got 7."),
        ("split.json", {"labeled": 5, "fold": 0}, "labeled must be a list, got 5."),
        ("split.json", {"labeled": [1], "fold": "x"}, "fold must be a whole number, got 'x'."),
        ("split.json", {"labeled": [1], "fold": None}, "fold must be a whole number, got None."),
        ("split.json", {"labeled": [1]}, "it lacks fold."),
    ],
)
def test_a_damaged_summary_or_split_is_named(tmp_path, name, content, message):
    folder = write_folder(tmp_path / "run", [line(1)], {})
    (folder / name).write_text(json.dumps(content))
    with pytest.raises(AggMatchError) as error:
        read_runs([folder])
    assert str(error.value).startswith(f"Cannot read {folder / name}: {message}")
