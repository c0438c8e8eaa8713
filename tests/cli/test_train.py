"""The command line as a user meets it: what it prints, and what it says when something is wrong."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from aggmatch import cli
from aggmatch.training.trainer import Trainer

QUICK = ["--steps", "6", "--set", "model.name=small-4", "--set", "train.batch=10", "--set", "train.unlabeled_ratio=2"]
SMALL_QUEUE = ["--set", "method.slots=8", "--set", "method.subsets=2"]


@pytest.fixture
def trained(run, tmp_path):
    code, out, err = run("train", "digits", "--out", "run", *QUICK, *SMALL_QUEUE)
    assert code == 0, err
    return tmp_path / "run", out


def test_a_run_prints_its_accuracy_and_where_it_lies(trained):
    path, out = trained
    summary = json.loads((path / "summary.json").read_text())
    assert "aggmatch on digits, 10 labels, fold 0, 6 steps" in out
    assert f"{summary['accuracy']:.2f} % test accuracy (average network, last step), " in out
    assert "Run folder: run" in out
    assert "step 6/6" in out


def test_the_median_names_its_number_of_evaluations(run):
    code, out, _ = run("train", "--method", "supervised", *QUICK, "--set", "train.evaluate_every=2")
    assert code == 0
    assert re.search(r"\(average network, last step; median of the last 3 evaluations \d+\.\d\d %\), \d+ s\.\n", out)


def test_paths_are_printed_as_they_are(run, tmp_path):
    words = ["train", "--method", "supervised", "--out", "r[bold]1:dog:", *QUICK]
    code, out, _ = run(*words)
    assert code == 0
    assert out.endswith("Run folder: r[bold]1:dog:\n")
    assert (tmp_path / "r[bold]1:dog:/summary.json").exists()
    code, _, err = run(*words)
    assert code == 2
    assert err.startswith("Error: r[bold]1:dog: holds a run already.")


def test_quiet_prints_nothing(run):
    assert run("train", "--quiet", "--method", "supervised", *QUICK) == (0, "", "")


def test_the_default_folder_names_the_run_and_the_same_words_resume_it(run, tmp_path):
    words = ["train", "digits", "--method", "fixmatch", "--labels", "20", "--fold", "2", *QUICK]
    assert run(*words)[0] == 0
    assert (tmp_path / "runs/digits-20-fixmatch-fold2/summary.json").exists()
    code, _, err = run(*words)
    assert code == 2
    assert "holds a run already. Continue it with --resume, or choose another --out" in err
    assert run(*words, "--resume")[0] == 0


def test_a_run_on_a_given_split_is_called_after_its_labels_and_fold(run, tmp_path):
    words = ["train", "digits", "--method", "supervised", *QUICK]
    assert run(*words, "--labels", "20", "--fold", "2", "--out", "a")[0] == 0
    code, out, _ = run(*words, "--split", "a")
    assert code == 0
    assert "supervised on digits, 20 labels, fold 2" in out
    assert (tmp_path / "runs/digits-20-supervised-fold2/summary.json").exists()
    assert run(*words, "--split", "a", "--resume")[0] == 0
    code, _, err = run(*words, "--split", "a", "--labels", "10")
    assert code == 2
    assert err.startswith("Error: data.labels must be left out or 20, as in the split")


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


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("methods", ["aggmatch", "fixmatch", "supervised", "Sohn et al."]),
        ("data", ["digits", "cifar10", "cifar100", "svhn", "come with the package", "--download fetches 170 MB"]),
        ("recipes", ["model.name = wrn-28-8", "method.slots = 256", "a folder of images"]),
        ("settings", ["method.similarity_temperature", "0.05", "τ_sim", "optim.lr"]),
    ],
)
def test_lists_show_what_there_is(run, what, expected):
    code, out, _ = run("list", what)
    assert code == 0
    assert all(word in out for word in expected)


def test_settings_are_listed_as_they_are_on_a_data_set(run):
    code, out, _ = run("list", "settings", "--data", "cifar100", "--method", "fixmatch")
    assert code == 0
    shown = dict(line.split()[:2] for line in out.splitlines() if line.startswith("  train.") or "model.name" in line)
    assert (shown["train.batch"], shown["model.name"]) == ("48", "wrn-28-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "nonsense"], "Unknown data set 'nonsense'"),
        (["train", "digit"], "Did you mean 'digits'?"),
        (
            ["train", "--method", "aggmach"],
            "Did you mean 'aggmatch'? See: aggmatch list methods",
        ),
        (["train", "--labels", "13"], "data.labels must be a multiple of 10"),
        (["train", "--labels", "5"], "data.labels must be at least 10, one for each class"),
        (["train", "--labels", "0"], "data.labels must be at least 1, got 0 (from --labels 0)."),
        (["train", "--labels", "100000"], "data.labels asks for 10000 images of class"),
        (["train", "--labels", "-10"], "data.labels must be at least 1, got -10"),
        (["train", "--steps", "0"], "train.steps must be in [1, 16777216], got 0 (from --steps 0)."),
        (["train", "--steps", str(10**23)], "train.steps must be in [1, 16777216], got 1000"),
        (["train", "--fold", "-1"], "data.fold must be at least 0, got -1"),
        (["train", "--set", "method.threshold=1.5"], "in [0, 1], got 1.5 (from --set method.threshold=1.5)."),
        (["train", "--set", "optim.learning_rate=1"], "Unknown setting 'optim.learning_rate'"),
        (["train", "--set", "train.batch=-3"], "train.batch must be at least 1, got -3"),
        (["train", "--set", "nonsense"], "--set takes key=value, got 'nonsense'"),
        (["train", "--set", "model.name=resnet"], "model.name must be small, small-WIDTH, or wrn-DEPTH-WIDTH"),
        (["train", "--device", "quantum"], "runtime.device must be auto, cpu, cuda or cuda:N, got 'quantum'."),
        (["train", "--device", "mps"], "runtime.device must be auto, cpu, cuda or cuda:N, got 'mps'."),
        (["train", "--device", "cuda:99"], "runtime.device is 'cuda:99', but this machine has"),
        (["train", "--config", "missing.toml"], "Cannot read configuration missing.toml: No such file or directory."),
        (["train", "--split", "missing.json"], "Cannot read the split"),
        (["train", "--out", "long" * 100], "long/config.json: File name too long."),
        (
            ["train", "--set", "model.name=small-9999999"],
            "There is too little memory for this. Try a smaller train.batch",
        ),
        (["train", "--resume", "--out", "nowhere"], "Cannot resume nowhere: it holds no run."),
        (["train", "cifar10"], "cifar10 is not in data: looked for cifar-10-python.tar.gz"),
        (["train", "svhn", "--data-dir", "missing"], "svhn is not in missing"),
        (["evaluate", "nowhere"], "Cannot read nowhere/config.json: No such file or directory."),
        (["list", "settings", "--data", "nonsense"], "Unknown data set 'nonsense'."),
        (["list", "nonsense"], "Unknown list 'nonsense'. Known: data, methods, recipes, settings."),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_two(run, tmp_path, words, message):
    code, out, err = run(*words)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [], "nothing was left behind"


def test_a_truncated_archive_is_named(run, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/cifar-10-python.tar.gz").write_bytes(b"\x1f\x8b\x08\x00 not much of an archive")
    code, _, err = run("train", "cifar10")
    assert code == 2
    assert "cifar-10-python.tar.gz is damaged" in err


def test_a_read_only_folder_is_named(run, tmp_path):
    place = tmp_path / "file"
    place.write_text("not a folder")
    code, _, err = run("train", "--out", "file/run", *QUICK)
    assert code == 2
    assert "file/run" in err
    assert place.read_text() == "not a folder"


def test_a_full_disk_keeps_the_last_checkpoint(run, tmp_path):
    words = ["train", "--out", "run", *QUICK, *SMALL_QUEUE, "--set", "runtime.checkpoint_every=2"]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = 60_000  # enough for the small files, not for a checkpoint
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        code, _, err = run(*words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 2
    assert "Cannot write run/checkpoints/step-00000002" in err
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        code, _, err = run(*words, "--resume")
    assert (code, err) == (0, "Warning: run has no checkpoint; its run begins again.\n")


def test_a_resume_with_another_setting_is_refused(run, trained):
    code, _, err = run("train", "--resume", "--out", "run", "--set", "optim.lr=0.01")
    assert code == 2
    assert "Cannot resume run: optim.lr was 0.03, now 0.01" in err


def test_a_run_without_a_model_cannot_be_evaluated(run, trained):
    path, _ = trained
    (path / "model.safetensors").unlink()
    code, _, err = run("evaluate", str(path))
    assert code == 2
    assert (
        "run has no model.safetensors any more, though its run finished. Copy it back, or remove summary.json and"
        in err
    )
    (path / "summary.json").unlink()
    assert "has no model yet: its run has not finished. Continue it with --resume." in run("evaluate", str(path))[2]


def test_a_damaged_model_is_named(run, trained):
    path, _ = trained
    (path / "model.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{}")
    code, _, err = run("evaluate", str(path))
    assert code == 2
    assert "run/model.safetensors: not a checkpoint" in err


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


def test_a_signal_saves_and_says_how_to_go_on(run, monkeypatch):
    monkeypatch.setattr("aggmatch.training.trainer.Trainer.step", interrupting_step())
    code, _, err = run("train", "--out", "run [1]", *QUICK, *SMALL_QUEUE)
    assert code == 128 + signal.SIGINT
    assert err == "Stopped and saved at step 3. Continue: aggmatch train --resume --out 'run [1]'\n"


def test_a_reader_that_leaves_stops_the_words_and_not_the_training(tmp_path):
    words = [sys.executable, "-m", "aggmatch", "train", "--out", str(tmp_path / "run"), *QUICK, *SMALL_QUEUE]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert (tmp_path / "run/summary.json").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_an_output_that_cannot_be_written_is_one_sentence():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "aggmatch", "list", "methods"],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(),
        )
    assert done.returncode == 2
    assert done.stderr == b"Error: Cannot use the output: No space left on device.\n"


def interrupting_step():
    step = Trainer.step

    def interrupted(state):
        step(state)
        if state.steps_done == 3:
            os.kill(os.getpid(), signal.SIGINT)

    return interrupted
