"""How runs begin, and when they are refused: the folder, the settings, an earlier checkpoint."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import toy_settings
from tests.training.quick_runs import complete, model_bytes, quick

import aggmatch
from aggmatch.config import Layer
from aggmatch.errors import AggMatchError
from aggmatch.runs.checkpoint import Checkpoint, found, save, unpack
from aggmatch.runs.folder import RunFolder


def test_a_split_can_be_reused(finished: RunFolder, tmp_path: Path):
    run = aggmatch.start(quick(data__split=str(finished.split), data__fold=3, train__steps=2), tmp_path / "reused")
    assert run.split.labeled.tolist() == json.loads(finished.split.read_text())["labeled"]
    complete(run)
    drawn = {"labels": len(run.split.labeled), "fold": 0}
    for place in (run.folder.result() or {}, run.folder.read_config()["data"]):
        assert {name: place[name] for name in drawn} == drawn, "the values of the split"


def test_a_resume_with_other_settings_fails_and_names_their_keys(finished: RunFolder):
    changes = [Layer("--set optim.lr=0.01", {"optim.lr": 0.01}), Layer("--set x", {"method.slots": 8})]
    with pytest.raises(AggMatchError) as caught:
        aggmatch.resume(finished.path, changes)
    assert "optim.lr was 0.03, now 0.01" in str(caught.value)
    assert "method.slots was 16, now 8" in str(caught.value)


def test_runtime_settings_may_change_on_resume(finished: RunFolder):
    run = aggmatch.resume(finished.path, [Layer("x", {"runtime.checkpoint_every": 7, "runtime.device": "cpu"})])
    assert run.settings.runtime.checkpoint_every == 7


def test_a_run_from_another_type_of_device_is_not_resumed(finished: RunFolder, tmp_path: Path):
    folder = RunFolder(shutil.copytree(finished.path, tmp_path / "moved"))
    newest = unpack(found(folder.checkpoints)[0].read_bytes())
    for path in found(folder.checkpoints):
        path.unlink()
    save(folder.checkpoints, 24, Checkpoint(newest.tensors, {**newest.facts, "device": "cuda"}))
    with pytest.raises(AggMatchError, match="runtime.device=cuda"):
        aggmatch.resume(folder.path, [])


def test_a_folder_with_a_run_is_not_overwritten(finished: RunFolder):
    before = model_bytes(finished)
    with pytest.raises(AggMatchError, match="already holds a run. Resume it"):
        aggmatch.start(quick(), finished.path)
    assert model_bytes(finished) == before


def test_a_folder_with_other_files_is_not_used(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("irreplaceable")
    with pytest.raises(AggMatchError, match="is not empty and holds no run"):
        aggmatch.start(quick(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_that_cannot_be_used_fails_before_the_work_begins(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("aggmatch.training.begin.Trainer", None)  # which computes the features of a frozen backbone
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.tex").touch()
    for place in ("file", "file/run", "full"):
        with pytest.raises(AggMatchError, match=f"{tmp_path / place}"):
            aggmatch.start(quick(), tmp_path / place)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "full", "thesis.tex"]


def test_a_wrong_setting_creates_no_folder(tmp_path: Path):
    with pytest.raises(AggMatchError, match=r"data\.labels"):
        aggmatch.start(quick(data__labels=13), tmp_path / "run")
    with pytest.raises(AggMatchError, match=r"runtime\.device"):
        aggmatch.start(quick(runtime__device="quantum"), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_failed_half_way_can_be_repeated(finished: RunFolder, tmp_path: Path):
    folder = RunFolder(tmp_path / "again")
    folder.path.mkdir()
    folder.split.write_bytes(finished.split.read_bytes())
    assert aggmatch.start(quick(), folder.path).folder.holds_run
    folder.config.unlink()
    folder.split.write_text("another split")
    with pytest.raises(AggMatchError, match="is not empty and holds no run"):
        aggmatch.start(quick(), folder.path)
    assert folder.split.read_text() == "another split"


def test_resuming_without_checkpoints_warns_that_training_starts_again(finished: RunFolder, tmp_path: Path):
    folder = RunFolder(shutil.copytree(finished.path, tmp_path / "bare"))
    shutil.rmtree(folder.checkpoints)
    assert list(aggmatch.resume(folder.path, []).train()) == [], "it is finished"
    folder.summary.unlink()
    with pytest.warns(UserWarning, match="has no checkpoint"):
        assert aggmatch.resume(folder.path, []).state.steps_done == 0


def test_a_checkpoint_of_another_run_is_not_loaded(finished: RunFolder, tmp_path: Path):
    other = complete(aggmatch.start(quick(model__name="small-8", train__steps=2), tmp_path / "other"))
    folder = RunFolder(shutil.copytree(finished.path, tmp_path / "mixed"))
    shutil.rmtree(folder.checkpoints)
    shutil.copytree(other.folder.checkpoints, folder.checkpoints)
    with pytest.raises(AggMatchError, match="Cannot resume .*mixed: .*model.name was .*[Ii]ts newest checkpoint"):
        aggmatch.resume(folder.path, [])


def test_an_empty_folder_cannot_be_resumed(tmp_path: Path):
    with pytest.raises(AggMatchError, match="holds no run"):
        aggmatch.resume(tmp_path, [])


def test_a_resume_with_another_method_fails_and_names_both(finished: RunFolder, tmp_path: Path):
    copy = RunFolder(shutil.copytree(finished.path, tmp_path / "copy"))
    with pytest.raises(AggMatchError, match=r"method\.name was 'aggmatch', now 'paws'"):
        aggmatch.resume(copy.path, {"method.name": "paws"})


def test_a_run_that_another_process_started_meanwhile_is_not_overwritten(finished: RunFolder):
    with pytest.raises(AggMatchError, match="already holds a run"):
        finished.create(b"split", {})


def test_data_without_test_images_need_a_holdout_of_zero(toy_data, tmp_path: Path):
    data = replace(toy_data, test=toy_data.test.take([]))
    with pytest.raises(AggMatchError, match=r"toy has no test images.*data\.holdout=0"):
        aggmatch.start(toy_settings(), tmp_path / "run", data=data)
    assert not (tmp_path / "run").exists()
