"""The command line as a user sees it: its output, and its messages when something is wrong."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from aggmatch import cli
from aggmatch.cli.app import wait_briefly
from aggmatch.training.trainer import Trainer

QUICK = ["--steps", "6", "--set", "model.name=small-4", "--set", "train.batch=10", "--set", "train.unlabeled_ratio=2"]
SMALL_QUEUE = ["--set", "method.slots=8", "--set", "method.subsets=2"]


@pytest.fixture
def trained(run, tmp_path):
    code, out, err = run("train", "digits", "--out", "run", *QUICK, *SMALL_QUEUE)
    assert code == 0, err
    return tmp_path / "run", out


def test_a_run_prints_its_accuracy_and_its_folder(trained):
    path, out = trained
    summary = json.loads((path / "summary.json").read_text())
    assert "aggmatch on digits, 10 labels, fold 0, 6 steps, neighbours recipe" in out
    assert summary["recipe"] == "neighbours"
    assert f"{summary['accuracy']:.2f} % test accuracy (average network, last step; median of the last 6 " in out
    assert "Run folder: run" in out
    assert "step 6/6" in out


def test_several_tries_name_the_one_with_the_lowest_loss_and_continue(run, tmp_path):
    words = ["train", "digits", "--method", "supervised", *QUICK, "--out", "run", "--quiet", "--tries"]
    code, out, err = run(*words, "2")
    assert code == 0, err
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"run", "run-seed1"}
    before = (tmp_path / "run/summary.json").read_text()
    code, out, err = run(*words, "3")
    assert code == 0, err
    assert (tmp_path / "run/summary.json").read_text() == before, "a finished try is not trained again"
    found = re.search(r"Seed (\d) has the lowest loss\..* Run folder: (run\S*)", out)
    assert found
    assert json.loads((tmp_path / found[2] / "config.json").read_text())["train"]["seed"] == int(found[1])


def test_the_median_states_its_number_of_evaluations(run):
    code, out, _ = run("train", "--method", "supervised", *QUICK, "--set", "train.evaluate_every=2")
    assert code == 0
    assert re.search(r"\(average network, last step; median of the last 3 evaluations \d+\.\d\d %\), \d+ s\.\n", out)


def test_paths_are_printed_unchanged(run, tmp_path):
    words = ["train", "--method", "supervised", "--out", "r[bold]1:dog:", *QUICK]
    code, out, _ = run(*words)
    assert code == 0
    assert out.endswith("Run folder: r[bold]1:dog:\n")
    assert (tmp_path / "r[bold]1:dog:/summary.json").exists()
    code, _, err = run(*words)
    assert code == 2
    assert err.startswith("Error: r[bold]1:dog: ")


def test_a_named_recipe_is_stored_and_named_in_results(run, tmp_path):
    for name in ("paper", "cold-start"):
        words = ["--out", f"runs/{name}", "--recipe", name, "--set", "method.warmup=2"]
        code, _, err = run("train", "digits", *QUICK, *SMALL_QUEUE, *words)
        assert code == 0, err
    assert json.loads((tmp_path / "runs/cold-start/config.json").read_text())["recipe"] == "cold-start"
    code, out, _ = run("results", "runs", "--as", "md")
    assert code == 0
    assert "| recipe |" in out
    assert "| cold-start |" in out


def test_quiet_prints_nothing(run):
    assert run("train", "--quiet", "--method", "supervised", *QUICK) == (0, "", "")


def test_the_default_folder_names_the_run_and_the_same_command_resumes_it(run, tmp_path):
    words = ["train", "digits", "--method", "fixmatch", "--labels", "20", "--fold", "2", *QUICK]
    assert run(*words)[0] == 0
    assert (tmp_path / "runs/digits-20-fixmatch-fold2/summary.json").exists()
    code, _, err = run(*words)
    assert code == 2
    assert "--resume" in err
    assert "--out" in err
    assert run(*words, "--resume")[0] == 0


def test_a_run_on_a_given_split_is_named_by_the_labels_and_fold_of_the_split(run, tmp_path):
    words = ["train", "digits", "--method", "supervised", *QUICK]
    assert run(*words, "--labels", "20", "--fold", "2", "--out", "a")[0] == 0
    code, out, _ = run(*words, "--split", "a")
    assert code == 0
    assert "supervised on digits, 20 labels, fold 2" in out
    assert (tmp_path / "runs/digits-20-supervised-fold2/summary.json").exists()
    assert run(*words, "--split", "a", "--resume")[0] == 0
    code, _, err = run(*words, "--split", "a", "--labels", "10")
    assert code == 2
    assert err.startswith("Error: data.labels ")


def test_a_run_can_be_repeated_from_its_own_configuration(run, trained, tmp_path):
    path, _ = trained
    assert run("train", "--config", str(path / "config.json"), "--out", "again")[0] == 0
    assert (tmp_path / "again/model.safetensors").read_bytes() == (path / "model.safetensors").read_bytes()


def test_evaluate_gives_the_accuracy_of_the_summary(run, trained):
    path, _ = trained
    code, out, _ = run("evaluate", str(path))
    summary = json.loads((path / "summary.json").read_text())
    assert code == 0
    balanced = sum(summary["class_accuracy"].values()) / 10
    assert f"{summary['accuracy']:.2f} % of 360 test images; mean over classes {balanced:.2f} %." in out
    assert f"{summary['class_accuracy']['7']:.2f}" in out
    assert "aggmatch, neighbours recipe: " in out


EVIL = "from pathlib import Path\nPath('marker').write_text('imported')\n"


def test_a_run_folder_named_like_a_toml_file_may_not_name_code(run, trained, tmp_path):
    (tmp_path / "evil.py").write_text(EVIL)
    config = json.loads((tmp_path / "run/config.json").read_text())
    (tmp_path / "theirs.toml").mkdir()
    (tmp_path / "theirs.toml/config.json").write_text(json.dumps(config | {"method": {"name": "evil.py:X"}}))
    code, _, err = run("train", "--config", "theirs.toml", "--out", "new")
    assert (code, (tmp_path / "marker").exists()) == (2, False)
    assert "--allow-code evil.py:X" in err


def test_a_json_configuration_may_not_name_code_but_a_toml_file_may(run, trained, tmp_path):
    (tmp_path / "evil.py").write_text(EVIL)
    config = json.loads((tmp_path / "run/config.json").read_text())
    config["method"] = {"name": "evil.py:X"}
    (tmp_path / "other.json").write_text(json.dumps(config))
    code, _, err = run("train", "--config", "other.json", "--out", "new")
    assert (code, (tmp_path / "marker").exists()) == (2, False)
    assert "--allow-code evil.py:X" in err
    (tmp_path / "mine.toml").write_text('[method]\nname = "evil.py:X"\n')
    run("train", "--config", "mine.toml", "--out", "new")
    assert (tmp_path / "marker").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "nonsense"], "Unknown data set 'nonsense'"),
        (["train", "digit"], "Did you mean 'digits'?"),
        (["train", "--method", "aggmach"], "Did you mean 'aggmatch'?"),
        (["train", "--labels", "13"], "data.labels"),
        (["train", "--labels", "5"], "data.labels"),
        (["train", "--labels", "0"], "data.labels must be at least 1, got 0 (from --labels 0)."),
        (["train", "--labels", "100000"], "data.labels"),
        (["train", "--labels", "-10"], "data.labels"),
        (["train", "--steps", "0"], "train.steps"),
        (["train", "--steps", str(10**23)], "train.steps"),
        (["train", "--fold", "-1"], "data.fold"),
        (
            ["train", "--set", "method.threshold=1.5"],
            "method.threshold must be in [0, 1], got 1.5 (from --set method.threshold=1.5).",
        ),
        (["train", "--set", "recipe=[1]"], "recipe"),
        (["train", "--set", "recipe.name=x"], "recipe"),
        (["train", "--recipe", "cold-start", "--method", "uda"], "recipe"),
        (["train", "--set", "runtime.threads=1000000"], "runtime.threads"),
        (["train", "--set", "optim.learning_rate=1"], "Unknown setting 'optim.learning_rate'"),
        (["train", "--set", "train.batch=-3"], "train.batch"),
        (["train", "--set", "nonsense"], "--set"),
        (["train", "--set", "model.name=resnet"], "Unknown network 'resnet'"),
        (["train", "--set", "model.name=wrn-27-2"], "model.name"),
        (["train", "--set", "model.name=small-0"], "model.name"),
        (["train", "--set", "model.name=nowhere.py:Net"], "nowhere.py"),
        (["train", "--method", "nowhere.py:Mine"], "nowhere.py"),
        (["train", "nowhere.py:DATA"], "nowhere.py"),
        (["train", "--device", "quantum"], "runtime.device"),
        (["train", "--device", "mps"], "runtime.device"),
        (["train", "--device", "cuda:99"], "runtime.device"),
        (["train", "--config", "missing.toml"], "missing.toml"),
        (["train", "--split", "missing.json"], "missing.json"),
        (["train", "--out", "long" * 100], "File name too long"),
        (["train", "--set", "method.slots=100000000000000"], "train.batch"),
        (["train", "--resume", "--out", "nowhere"], "nowhere"),
        (["train", "cifar10"], "cifar-10-python.tar.gz"),
        (["train", "svhn", "--data-dir", "missing"], "svhn"),
        (["evaluate", "nowhere"], "nowhere/config.json"),
        (["list", "settings", "--data", "nonsense"], "Unknown data set 'nonsense'."),
        (["list", "nonsense"], "Unknown list 'nonsense'"),
    ],
)
def test_a_mistake_gives_one_line_and_exit_code_two(run, tmp_path, words, message):
    code, out, err = run(*words)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [], "no file is left behind"


def test_the_error_names_a_truncated_archive(run, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/cifar-10-python.tar.gz").write_bytes(b"\x1f\x8b\x08\x00 not much of an archive")
    code, _, err = run("train", "cifar10")
    assert code == 2
    assert "cifar-10-python.tar.gz" in err


def test_the_error_names_a_folder_that_cannot_be_written(run, tmp_path):
    place = tmp_path / "file"
    place.write_text("not a folder")
    code, _, err = run("train", "--out", "file/run", *QUICK)
    assert code == 2
    assert "file/run" in err
    assert place.read_text() == "not a folder"


def test_a_full_disk_keeps_the_last_checkpoint(run, tmp_path):
    words = [
        "train",
        "--recipe",
        "cold-start",
        "--out",
        "run",
        *QUICK,
        *SMALL_QUEUE,
        "--set",
        "runtime.checkpoint_every=2",
    ]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = 60_000  # enough for the small files, not for a checkpoint
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        code, _, err = run(*words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 2
    assert "run/checkpoints/step-00000002" in err
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        code, _, err = run(*words, "--resume")
    assert code == 0
    assert err.startswith("Warning: run ")


def test_a_resume_with_another_setting_fails(run, trained):
    code, _, err = run("train", "--resume", "--out", "run", "--set", "optim.lr=0.01")
    assert code == 2
    assert "optim.lr was 0.03, now 0.01" in err


def test_a_run_without_a_model_cannot_be_evaluated(run, trained):
    path, _ = trained
    (path / "model.safetensors").unlink()
    code, _, err = run("evaluate", str(path))
    assert code == 2
    assert "model.safetensors" in err
    assert "summary.json" in err
    (path / "summary.json").unlink()
    shutil.rmtree(path / "checkpoints")
    assert "--resume" in run("evaluate", str(path))[2]


def test_the_error_names_a_corrupt_model(run, trained):
    path, _ = trained
    (path / "model.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{}")
    code, _, err = run("evaluate", str(path))
    assert code == 2
    assert "run/model.safetensors" in err


def test_tensorboard_gets_the_metrics(run, tmp_path):
    pytest.importorskip("tensorboard")
    assert run("train", "--out", "run", "--tensorboard", "--method", "supervised", *QUICK)[0] == 0
    assert list((tmp_path / "run/tensorboard").iterdir())


def test_the_version_is_printed(run):
    code, out, _ = run("--version")
    assert code == 0
    assert out.startswith("aggmatch 0.")


COMMANDS = [
    "train",
    "evaluate",
    "list",
    "predict",
    "export",
    "compare",
    "reproduce",
    "results",
    "demo",
    "figures",
    "explain",
    "report",
    "bench",
]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_answers_in_under_half_a_second_of_cpu(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "aggmatch", *command.split(), "--help"],
        capture_output=True,
        text=True,
        env=environment(),
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0
    assert "Usage" in done.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[2])}


def test_a_signal_saves_the_run_and_prints_how_to_continue(run, monkeypatch):
    monkeypatch.setattr("aggmatch.training.trainer.Trainer.step", interrupting_step())
    code, _, err = run("train", "--out", "run [1]", *QUICK, *SMALL_QUEUE)
    assert code == 128 + signal.SIGINT
    assert "step 3" in err
    assert err.endswith("aggmatch train --resume --out 'run [1]'\n")


def test_a_closed_pipe_stops_the_output_and_not_the_training(tmp_path):
    words = [sys.executable, "-m", "aggmatch", "train", "--out", str(tmp_path / "run"), *QUICK, *SMALL_QUEUE]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert (tmp_path / "run/summary.json").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_an_output_that_cannot_be_written_gives_one_line():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "aggmatch", "list", "methods"],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(),
        )
    assert done.returncode == 2
    assert done.stderr.endswith(b"No space left on device.\n")
    assert done.stderr.count(b"\n") == 1


def interrupting_step():
    step = Trainer.step

    def interrupted(state):
        step(state)
        if state.steps_done == 3:
            os.kill(os.getpid(), signal.SIGINT)

    return interrupted


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_threads_that_wait_sleep_soon_unless_the_user_decides(chosen, expected, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "environ", chosen)
    wait_briefly()
    assert chosen.get("GOMP_SPINCOUNT") == expected
