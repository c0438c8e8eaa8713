"""Whole runs: the files they write, and how they stop and continue."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.conftest import toy_settings
from tests.training.quick_runs import QUICK, complete, model_bytes, quick

import aggmatch
from aggmatch.config import read_file
from aggmatch.errors import AggMatchError
from aggmatch.inference.model import Snapshot, TrainedModel
from aggmatch.runs.checkpoint import Checkpoint, found, load_newest, pack, unpack
from aggmatch.runs.folder import RunFolder, read_log
from aggmatch.settings import resolve


def test_a_run_folder_holds_all_files_of_the_run(finished: RunFolder):
    summary = finished.result()
    assert summary is not None
    assert {name: summary[name] for name in ("data", "labels", "fold", "method", "steps", "network")} == {
        "data": "digits",
        "labels": 10,
        "fold": 0,
        "method": "aggmatch",
        "steps": 24,
        "network": "average",
    }
    records = read_log(finished.metrics)
    assert [record["step"] for record in records] == [5, 10, 15, 20, 24]
    assert [record["step"] for record in records if "accuracy_average" in record] == [10, 20, 24]
    for name in ("loss", "loss_labeled", "loss_unlabeled", "lr", "images_per_second", "queue_fill", "confidence"):
        assert name in records[0]
    assert records[0]["pseudo_coverage"] == 0, "pseudo labels do not count in the warm-up"
    assert {"pseudo_precision", "pseudo_recall", "pseudo_coverage"} <= set(records[-1])
    assert summary["accuracy"] == records[-1]["accuracy_average"]
    assert resolve([read_file(finished.config)]) == quick()
    assert json.loads(finished.split.read_text())["labeled"]
    assert unpack(model_bytes(finished)).facts["classes"] == list("0123456789")
    assert [int(path.name.split("-")[1]) for path in found(finished.checkpoints)] == [24, 20]


def test_the_same_settings_give_the_same_weights(finished: RunFolder, tmp_path: Path):
    again = complete(aggmatch.start(quick(), tmp_path / "again"))
    assert model_bytes(again.folder) == model_bytes(finished)
    other = complete(aggmatch.start(quick(data__fold=1), tmp_path / "other"))
    assert model_bytes(other.folder) != model_bytes(finished)


@pytest.mark.parametrize("cadence", ["checkpoint", "signal"])
def test_a_stopped_run_continues_to_the_same_weights_and_metrics(finished: RunFolder, tmp_path: Path, cadence):
    run = aggmatch.start(quick(), tmp_path / "stopped")
    records = run.train()
    if cadence == "signal":
        assert [next(records)["step"] for _ in range(2)] == [5, 10]
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(aggmatch.Stopped) as stopped:
            next(records)
        assert stopped.value.signal_number == signal.SIGTERM
        assert stopped.value.step == 11, "the step after the last record"
        latest = load_newest(run.folder.checkpoints)
        assert latest is not None
        assert latest.facts["step"] == 11, "this step is saved"
    else:
        for record in records:
            if record["step"] == 15:
                break
        del records
    resumed = complete(aggmatch.resume(tmp_path / "stopped", []))
    assert model_bytes(resumed.folder) == model_bytes(finished)
    untimed = [
        [{k: v for k, v in record.items() if k not in ("seconds", "images_per_second")} for record in read_log(path)]
        for path in (finished.metrics, resumed.folder.metrics)
    ]
    assert untimed[0] == untimed[1]


@pytest.mark.slow
def test_a_killed_process_continues_to_bit_identical_weights(finished: RunFolder, tmp_path: Path):
    out = tmp_path / "killed"
    options = [word for key, value in QUICK.items() if key != "data.name" for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "aggmatch", "train", "digits", "--out", str(out), *options]
    environment = os.environ | {"PYTHONPATH": str(Path(aggmatch.__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    for kill_after in (1, 2):
        process = subprocess.Popen([*command, *(["--resume"] if kill_after > 1 else [])], env=environment)
        deadline = time.monotonic() + 120
        while len(found(out / "checkpoints")) < kill_after and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = subprocess.run([*command, "--resume"], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    whole = tmp_path / "whole"
    done = subprocess.run(
        [*command[: -len(options) - 1], str(whole), *options], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert model_bytes(RunFolder(out)) == model_bytes(RunFolder(whole))


def test_a_corrupt_checkpoint_falls_back_to_the_previous_one(finished: RunFolder, tmp_path: Path):
    run = aggmatch.start(quick(), tmp_path / "corrupt")
    for record in run.train():
        if record["step"] == 15:
            break
    newest = found(run.folder.checkpoints)[0]
    newest.write_bytes(newest.read_bytes()[:1000])
    with pytest.warns(UserWarning, match=r"step-.* is corrupt"):
        resumed = aggmatch.resume(tmp_path / "corrupt", [])
    assert resumed.state.steps_done == 8
    assert model_bytes(complete(resumed).folder) == model_bytes(finished)


def test_training_can_pause_and_continue_with_the_same_run_object(finished: RunFolder, tmp_path: Path):
    run = aggmatch.start(finished.settings(), tmp_path / "run")
    first = next(iter(run.train()))
    paused = run.seconds
    rest = list(run.train())
    logged = [record["step"] for record in read_log(run.folder.metrics)]
    assert logged == [first["step"], *(record["step"] for record in rest)]
    assert logged == [record["step"] for record in read_log(finished.metrics)]
    assert rest[0]["seconds"] >= paused
    assert model_bytes(run.folder) == model_bytes(finished)


def test_precision_is_over_all_pseudo_labels_since_the_last_log_step(finished: RunFolder):
    for record in read_log(finished.metrics):
        if record.get("pseudo_coverage"):
            expected = record["pseudo_recall"] / record["pseudo_coverage"]
            assert record["pseudo_precision"] == pytest.approx(expected)
        else:
            assert "pseudo_precision" not in record


def test_a_finished_run_is_not_changed(finished: RunFolder):
    before = {path: path.read_bytes() for path in (finished.summary, finished.model, finished.metrics)}
    assert list(aggmatch.resume(finished.path, []).train()) == []
    assert {path: path.read_bytes() for path in before} == before


def test_a_resume_after_the_log_lost_its_end_continues_with_complete_lines(finished: RunFolder, tmp_path: Path):
    folder = RunFolder(shutil.copytree(finished.path, tmp_path / "lost"))
    for path in (folder.summary, found(folder.checkpoints)[0]):
        path.unlink()
    folder.metrics.write_bytes(folder.metrics.read_bytes()[:100])
    with pytest.warns(UserWarning, match=r"metrics\.jsonl is shorter"):
        complete(aggmatch.resume(folder.path, []))
    assert model_bytes(folder) == model_bytes(finished)
    assert [record["step"] for record in read_log(folder.metrics)] == [24]


def test_a_checkpoint_is_saved_before_the_record_of_its_step_is_yielded(tmp_path: Path):
    run = aggmatch.start(quick(train__log_every=4), tmp_path / "left")
    records = run.train()
    assert next(records)["step"] == 4
    assert len(found(run.folder.checkpoints)) == 1


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path: Path):
    run = aggmatch.start(quick(), tmp_path / "bad")
    step = run.state.method.step

    def poisoned(batch, online, average):
        result = step(batch, online, average)
        if run.state.steps_done == 10:
            result.loss.data.fill_(float("nan"))
        return result

    run.state.method.step = poisoned
    with pytest.raises(AggMatchError, match=r"loss is not finite at step 11\..*step-00000008-.*optim\.lr"):
        complete(run)
    assert [int(path.name.split("-")[1]) for path in found(run.folder.checkpoints)] == [8, 4]
    assert not run.folder.model.exists()


def test_a_run_that_diverges_before_its_labels_are_propagated_says_so(tmp_path: Path):
    start = {"recipe": "neighbours", "method__contrast_steps": 2, "method__propagation_steps": 2}
    run = aggmatch.start(quick(**start, optim__lr=1e39), tmp_path / "bad")
    with pytest.raises(AggMatchError, match=r"is not finite at step \d.*optim\.lr"):
        complete(run)


def test_weights_that_are_not_finite_after_the_last_step_give_no_result(tmp_path: Path):
    run = aggmatch.start(quick(train__steps=1, optim__lr=1e39), tmp_path / "bad")
    with pytest.raises(AggMatchError, match=r"weights are not finite after step 1\..*optim\.lr"):
        complete(run)
    assert not run.folder.model.exists()
    assert not run.folder.summary.exists()
    assert not found(run.folder.checkpoints)


def test_two_processes_cannot_train_in_one_folder(tmp_path: Path):
    run = aggmatch.start(quick(train__steps=6), tmp_path / "run")
    records = run.train()
    next(records)
    with pytest.raises(AggMatchError, match="Another process is training in .*run"):
        complete(aggmatch.resume(tmp_path / "run", []))
    assert len(list(records)) == 1


def test_the_online_network_can_be_the_reported_one(tmp_path: Path):
    run = complete(aggmatch.start(quick(train__evaluated="online", train__steps=5), tmp_path / "online"))
    summary = run.folder.result()
    assert summary is not None
    assert summary["network"] == "online"
    assert summary["accuracy"] == summary["accuracy_online"]
    weights = unpack(model_bytes(run.folder)).section("network")
    assert all(torch.equal(weights[name], tensor) for name, tensor in run.state.online.state_dict().items())


def test_a_snapshot_holds_the_networks_and_the_queue_of_its_step(finished: RunFolder):
    assert sorted(path.name for path in finished.snapshots.iterdir()) == [
        "step-00000003.safetensors",
        "step-00000012.safetensors",
        "step-00000024.safetensors",
    ]
    last = Snapshot.load(finished.snapshot(24), finished.settings())
    assert last.step == 24
    model = TrainedModel.load(finished.path).network.state_dict()
    assert all(torch.equal(tensor, model[name]) for name, tensor in last.average.state_dict().items())
    first = Snapshot.load(finished.snapshot(3), finished.settings())
    assert int(last.method.get_buffer("queue.fill").sum()) > int(first.method.get_buffer("queue.fill").sum())


def test_the_error_of_a_corrupt_snapshot_names_its_file(finished: RunFolder, tmp_path: Path):
    path = tmp_path / "half.safetensors"
    path.write_bytes(finished.snapshot(24).read_bytes()[:1000])
    with pytest.raises(AggMatchError, match=r"Cannot read .*half\.safetensors"):
        Snapshot.load(path, finished.settings())


def test_snapshots_are_also_taken_at_given_steps(tmp_path: Path):
    changes = {"runtime__snapshots": [1.0], "runtime__snapshot_steps": [5, 7, 24, 9000]}
    run = complete(aggmatch.start(quick(**changes), tmp_path / "run"))
    assert [path.stem for path in sorted(run.folder.snapshots.iterdir())] == [
        "step-00000005",
        "step-00000007",
        "step-00000024",
    ]


def test_a_run_without_snapshots_writes_none(tmp_path: Path):
    run = complete(aggmatch.start(quick(runtime__snapshots=[]), tmp_path / "run"))
    assert not run.folder.snapshots.exists()


def test_a_model_with_other_tensors_fails_with_a_short_message(finished: RunFolder, tmp_path: Path):
    saved = unpack(finished.model.read_bytes())
    renamed = {name.replace("layers", "stages"): tensor for name, tensor in saved.tensors.items()}
    other = RunFolder(tmp_path / "other")
    shutil.copytree(finished.path, other.path)
    other.model.write_bytes(pack(Checkpoint(renamed, saved.facts)))
    with pytest.raises(AggMatchError, match=r"Cannot read .*model\.safetensors") as caught:
        TrainedModel.load(other.path)
    assert len(str(caught.value)) < 300 + len(str(other.model))


def test_a_snapshot_that_cannot_be_written_does_not_stop_the_run(tmp_path: Path):
    run = aggmatch.start(quick(runtime__snapshots=[0.5]), tmp_path / "run")
    run.folder.snapshots.write_text("a file where a folder should be")
    with pytest.warns(UserWarning, match="snapshot"):
        complete(run)
    assert run.folder.model.exists()


@pytest.mark.parametrize("method", ["aggmatch", "paws", "supervised"])
def test_a_run_without_test_images_ends_with_a_model_and_without_an_accuracy(toy_data, tmp_path: Path, method):
    data = replace(toy_data, test=toy_data.test.take([]))
    settings = toy_settings(method, data__holdout=0, train__steps=4)
    run = complete(aggmatch.start(settings, tmp_path / "run", data=data))
    summary = run.folder.result()
    assert summary is not None
    assert summary["accuracy"] is None
    assert not [key for record in run.folder.records() for key in record if key.startswith("accuracy")]
    model = TrainedModel.load(tmp_path / "run")
    assert model.evaluate(toy_data).labels.shape == (60,)
