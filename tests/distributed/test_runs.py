"""Runs of two processes: one folder, resumed on other numbers of processes, stopped together, killed, refused."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.conftest import made_once
from tests.distributed.pair import ROOT, environment, free_port, launch, run_pair, run_settings, toy
from torch import nn
from typer import Exit

from aggmatch.cli.app import follow_run
from aggmatch.distributed import Processes, joined, under_torchrun
from aggmatch.errors import AggMatchError
from aggmatch.models import build_network
from aggmatch.models.shared_norm import synchronize
from aggmatch.runs import checkpoint as checkpoints
from aggmatch.runs.folder import RunFolder
from aggmatch.training.begin import resume, start
from aggmatch.training.run import Stopped
from aggmatch.validate import InvalidValue

pytestmark = pytest.mark.usefixtures("one_thread")
TOLERANCE = 1e-4
"""Largest difference of weights between one process and two after twelve steps."""


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of the newest checkpoint."""
    found = checkpoints.load_newest(folder / "checkpoints")
    assert found is not None
    assert found.facts["step"] == 12
    return dict(found.tensors)


def check_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float) -> None:
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor, atol=tolerance, rtol=tolerance, msg=key)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Runs: `whole` by two processes, `killed` in two parts, `one` by one process and then two, `stopped` half way."""
    return made_once(tmp_path_factory, "runs-of-a-pair", make_runs)


def make_runs(path: Path) -> None:
    """Train the runs of the fixture `folder`."""
    killed = launch("-m", "tests.distributed.pair", "killed", path)
    outputs = [process.communicate(timeout=60) for process in killed]  # all others end within a minute
    (path / "killed.json").write_text(json.dumps([[process.returncode for process in killed], outputs[0][1]]))
    assert checkpoints.step_of(checkpoints.found(path / "killed" / "checkpoints")[0]) == 4, outputs
    shutil.copytree(path / "killed", path / "two then one")
    records = start(run_settings(), path / "one", data=toy()[0]).train()
    while next(records)["step"] < 4:
        pass
    records.close()  # type: ignore[attr-defined]
    (path / "found.json").write_text(json.dumps(run_pair("runs", path)))


def test_a_killed_process_ends_the_other_one_which_names_it(folder):
    (first, second), message = json.loads((folder / "killed.json").read_text())
    assert second == -9
    assert first not in (0, -9)
    assert "Process 1 of 2, on " in message
    assert "stopped. Resume the run: it continues from its newest checkpoint." in message


def test_a_killed_run_resumes_to_the_same_weights_bit_for_bit(folder):
    check_close(weights(folder / "killed"), weights(folder / "whole"), 0)


def test_a_run_of_one_process_continues_with_two_and_the_other_way_round(folder, tmp_path):
    alone = start(run_settings(), tmp_path / "alone", data=toy()[0])
    list(alone.train())
    list(resume(folder / "two then one", data=toy()[0]).train())
    for name in ("one", "two then one", "whole"):
        check_close(weights(folder / name), weights(tmp_path / "alone"), TOLERANCE)


def test_all_processes_stop_after_the_step_in_which_one_got_a_signal(folder):
    found = json.loads((folder / "found.json").read_text())
    assert [part["stop"] for part in found] == [5, 5]
    assert checkpoints.step_of(checkpoints.found(folder / "stopped" / "checkpoints")[0]) == 5


def test_one_process_writes_and_all_know_that_the_run_is_finished(folder):
    found = json.loads((folder / "found.json").read_text())
    assert [(part["records"], part["finished"]) for part in found] == [(6, True), (6, True)]
    run = RunFolder(folder / "whole")
    assert [record["step"] for record in run.records()] == [2, 4, 6, 8, 10, 12]
    assert [record["step"] for record in RunFolder(folder / "killed").records()] == [2, 4, 6, 8, 10, 12]
    assert len(run.sessions.read_text().splitlines()) == 1
    summary = run.result()
    assert summary is not None
    assert summary["hardware"].startswith("2 × ")


def test_batches_that_processes_cannot_share_are_refused_before_there_is_a_folder(folder, tmp_path):
    assert not (folder / "refused").exists()
    rotating = {"method__rotation_weight": 1.0, "method__rotated": 8, "train__batch": 6}
    for key, world, changes in (("train.batch", 2, {"train__batch": 9}), ("method.rotated", 3, rotating)):
        with pytest.raises(InvalidValue, match=f"{key} must give batches that {world} processes can share") as error:
            start(run_settings(**changes), tmp_path / "run", data=toy()[0], processes=Processes(0, world))
        assert str(error.value).startswith(key)
        assert not (tmp_path / "run").exists()


def test_torchrun_starts_a_run_that_prints_once(tmp_path):
    small = ["model.name=small-4", "train.batch=8", "runtime.snapshots=[]", "method.slots=16", "train.log_every=2"]
    settings = [word for setting in small for word in ("--set", setting)]
    command = ["-m", "aggmatch", "train", "digits", "--labels", "40", "--steps", "4", "--device", "cpu", *settings]
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *command]
    done = subprocess.run(
        words, env=environment(0, 1, 0), capture_output=True, text=True, check=False, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Run folder: runs/") == 1
    assert done.stdout.count("test accuracy") == 1
    assert "Warning" not in done.stderr
    assert [record["step"] for record in RunFolder(next((tmp_path / "runs").iterdir())).records()] == [1, 2, 3, 4]


@pytest.mark.parametrize(("world", "again"), [(1, "aggmatch train --resume --out"), (2, "the same command with --res")])
def test_a_stopped_run_says_how_to_continue_with_as_many_processes(world, again, tmp_path, monkeypatch, capsys):
    def stop() -> None:
        raise Stopped(5, 2)

    run = start(run_settings(), tmp_path / "run", data=toy()[0])
    run.state.processes = Processes(0, world)
    monkeypatch.setattr(run, "train", stop)
    with pytest.raises(Exit):
        follow_run(run, quiet=True)
    assert f"Stopped and saved at step 5. Continue: {again}" in capsys.readouterr().err


def test_the_example_of_the_page_runs_without_torchrun_too(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/distributed.md").read_text(), flags=re.S)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert capsys.readouterr().out.split()[-1] == "20"


def test_other_commands_refuse_several_processes(monkeypatch, run):
    for name, value in environment(0, 2, free_port()).items():
        monkeypatch.setenv(name, value)
    code, _, error = run("results", ".")
    assert (code, error) == (
        2,
        "Error: torchrun can start several processes of `train` only. Run `results` without it.\n",
    )


def test_a_process_alone_under_torchrun_trains_to_the_same_bits(monkeypatch, tmp_path):
    list(start(run_settings(), tmp_path / "alone", data=toy()[0]).train())
    assert not under_torchrun()
    for name, value in environment(0, 1, free_port()).items():
        monkeypatch.setenv(name, value)
    with joined() as processes:
        assert processes.connected
        list(start(run_settings(), tmp_path / "connected", data=toy()[0], processes=processes).train())
    check_close(weights(tmp_path / "connected"), weights(tmp_path / "alone"), 0)


def test_a_norm_that_cannot_be_shared_needs_local_statistics():
    class OwnNorm(nn.BatchNorm2d):
        pass

    with pytest.raises(InvalidValue, match="train.batchnorm must be local for a backbone with OwnNorm"):
        synchronize(nn.Sequential(OwnNorm(3)), Processes(0, 2))


def test_a_pass_that_cannot_be_divided_is_refused():
    network = build_network("small-4", channels=1, classes=3)
    network.divide(Processes(0, 2), synchronized=False)
    with pytest.raises(AggMatchError, match="2 processes cannot share a training pass of 3 images"):
        network(torch.zeros(3, 1, 8, 8))
    assert len(network.eval()(torch.zeros(3, 1, 8, 8)).logits) == 3
