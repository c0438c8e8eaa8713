"""The commands reproduce and results."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from aggmatch.config import Layer
from aggmatch.experiments import estimate, paper
from aggmatch.experiments.engines.local import InParallel
from aggmatch.experiments.planned import PlannedRun
from aggmatch.settings import resolve
from aggmatch.training.trainer import Trainer

STORED = Path(__file__).parents[2] / "results/cifar10-40.jsonl"


@pytest.fixture
def run(run, monkeypatch, tiny, words, importable):
    """Runs the command line in an empty folder; the tiny table is known."""
    monkeypatch.setattr(paper, "TABLES", paper.TABLES | {"tiny": tiny})
    return lambda *given: run(*given, *(words if given[:2] == ("reproduce", "tiny") else []))


def test_a_table_is_trained_printed_and_written_and_the_same_command_trains_nothing(run, tmp_path):
    code, out, err = run("reproduce", "tiny", "--methods", "supervised", "--labels", "10")
    assert (code, err) == (0, "")
    assert out.count("step 4/4") == 2
    folders = sorted(path.name for path in (tmp_path / "runs/reproduce").iterdir() if path.is_dir())
    assert [name[:-7] for name in folders] == ["digits-10-supervised-fold0", "digits-10-supervised-fold1"]
    accuracies = [json.loads(path.read_text())["accuracy"] for path in tmp_path.glob("runs/reproduce/*/summary.json")]
    assert f"{sum(accuracies) / 2:.2f} ± " in out
    assert "60.00 ± 1.50" in out
    assert "FixMatch" not in out
    assert sorted(path.suffix for path in (tmp_path / "runs/reproduce").glob("tiny.*")) == [
        ".csv",
        ".json",
        ".md",
        ".tex",
    ]
    again = run("reproduce", "tiny", "--methods", "supervised", "--labels", "10")
    assert "step" not in again[1].split("tiny: Digits")[0]
    assert out.endswith(again[1])


def test_runs_at_once_print_their_progress(run):
    code, out, err = run("reproduce", "tiny", "--methods", "supervised", "--labels", "10", "--at-once", "2")
    assert (code, err) == (0, "")
    lines = out.split("tiny: Digits")[0].splitlines()
    assert sum(line.endswith("  started") for line in lines) == 2
    assert sum(line.endswith("  finished") for line in lines) == 2
    assert any("step 4/4" in line and "accuracy" in line for line in lines)


def test_a_dry_run_lists_the_runs_and_leaves_nothing_behind(run, tmp_path, monkeypatch):
    monkeypatch.setattr(estimate, "measure", lambda settings: estimate.StepPace(60.0, "a test"))
    code, out, err = run("reproduce", "tiny", "--folds", "1", "--steps", "5", "--dry-run")
    assert code == 0
    assert out.count("missing") == 4
    assert "4 of 4 runs to train, 20 steps." in out
    assert out.index("4 of 4 runs to train") < out.index("About 20 min one after the other")
    assert "Measuring a step of fixmatch with small-4" in err
    assert list(tmp_path.iterdir()) == []


def test_a_table_is_made_from_stored_results_without_the_runs(run, tmp_path, plan, pretend):
    made = plan()
    for fold_run in made.runs[:2]:
        pretend(fold_run, 61.0)
    code, out, _ = run("results", "runs", "--out", "kept.jsonl")
    assert (code, out) == (0, "Wrote 2 runs to kept.jsonl.\n")
    again = run("results", "runs", "--out", "kept.jsonl")[1]
    assert again == "Wrote 2 runs to kept.jsonl, in place of 2 earlier lines.\n"
    for path in sorted((tmp_path / "runs").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    code, out, err = run("reproduce", "tiny", "--results", "kept.jsonl")
    assert code == 0
    assert "61.00 ± 0.00" in out
    assert err == "In this table: 2 of 2 stored runs.\n"
    assert list((tmp_path / "runs").iterdir()) == []
    assert "In this table: 0 of 2" in run("reproduce", "tiny", "--results", "kept.jsonl", "--steps", "3")[2]
    assert "In this table: 2 of 2" in run("reproduce", "tiny", *["--results", "kept.jsonl"] * 2)[2]
    assert run("reproduce", "tiny", "--results", "kept.jsonl", "--out", "here")[0] == 0
    assert (tmp_path / "here/tiny.md").exists()


def test_lines_of_an_old_format_are_left_out_and_counted(run, tmp_path, plan, pretend):
    pretend(plan(optim__lr=0.5).runs[0], 61.0)
    (tmp_path / "kept.jsonl").write_text('{"accuracy": 1}\n{"accuracy": 2}\n')
    assert run("results", "runs", "--out", "kept.jsonl")[0] == 0
    code, _, err = run("reproduce", "tiny", "--results", "kept.jsonl")
    assert code == 0
    assert err.splitlines() == [
        "kept.jsonl: left out 2 lines. The line has no configuration.",
        "Left out, because optim.lr is 0.5, not 0.03: supervised (paper recipe) on digits, 10 labels, fold 0, 4 steps.",
        "In this table: 0 of 1 stored run.",
    ]


def test_settings_that_differ_from_the_table_are_noted(run, plan, pretend):
    for fold_run in plan().runs[:2]:
        pretend(fold_run, 61.0)
    assert run("results", "runs", "--out", "kept.jsonl")[0] == 0
    _, out, _ = run("reproduce", "tiny", "--results", "kept.jsonl")
    assert "61.00 ± 0.00 †" in out
    assert "† 2 folds of 4 steps; model.name is 'small-4', not 'small-16'; train.batch is 10, not 30; " in out


def test_runs_and_stored_results_are_printed_as_a_table(run, plan, pretend):
    made = plan()
    for fold_run, accuracy in zip(made.runs[:3], (61.0, 64.0, 70.0), strict=True):
        pretend(fold_run, accuracy)
    code, shown, err = run("results", "runs")
    assert (code, err) == (0, "")
    assert "62.50 ± 2.12" in shown
    assert run("results", "runs", "--out", "kept.jsonl")[0] == 0
    assert run("results", "kept.jsonl")[1] == run("results", "runs", "kept.jsonl")[1] == shown
    assert "| supervised | 10 | 0, 1 | 62.50 ± 2.12 |" in run("results", "kept.jsonl", "--as", "md")[1]
    assert "| 62.50 ± 2.12 | 63.50 ± 2.12 |" in run("results", "kept.jsonl", "--as", "md", "--by-class")[1]
    assert (
        run("results", "kept.jsonl", "--as", "csv", "--at", "4")[1].splitlines()[1].startswith("supervised,digits,10")
    )


def test_steps_without_an_evaluation_are_named_with_the_nearest_one(run):
    code, out, err = run("results", STORED, "--at", "10000,10400")
    assert (code, "10,400" in out) == (0, True)
    assert err == "No run was evaluated after step 10,400; the nearest is 10,000.\n"


def test_runs_that_cannot_be_shown_are_counted(run, plan, pretend):
    shown, not_yet = plan().runs[:2]
    pretend(shown, 61.0)
    pretend(not_yet, 61.0, step=3)
    not_yet.folder.metrics.unlink()
    code, _, err = run("results", "runs")
    assert (code, err) == (0, "Left out 1 run not evaluated yet.\n")


def test_a_corrupt_folder_is_named_and_the_others_are_shown(run, plan, pretend):
    good, bad = plan().runs[:2]
    for each in (good, bad):
        pretend(each, 61.0)
    bad.folder.config.write_text("{")
    code, out, err = run("results", "runs")
    assert code == 0
    assert "61.00" in out
    assert err.startswith(f"Left out runs/{bad.path.name}: ")
    assert f"{bad.path.name}/config.json" in err
    assert run("results", "runs", "--out", "kept.jsonl")[1] == "Wrote 1 run to kept.jsonl.\n"
    code, _, err = run("results", bad.path)
    assert code == 2
    assert err.endswith(f"Error: No run could be read in {bad.path}.\n")


def test_of_runs_that_differ_only_in_cadence_one_is_shown(run, plan, pretend):
    pretend(plan().runs[0], 61.0)
    pretend(plan(train__log_every=1).runs[0], 61.0)
    code, _, err = run("results", "runs")
    assert (code, err) == (0, "Left out 1 run: another run of the same settings and fold is shown.\n")


@pytest.fixture
def foreign(plan, pretend, tmp_path):
    """A run whose method is code from a file; returns the name of the method."""
    (tmp_path / "mine.py").write_text("from aggmatch.methods.supervised import Supervised\n\nMine = Supervised\n")
    name = f"{tmp_path / 'mine.py'}:Mine"
    first = plan().runs[0]
    pretend(first, 61.0)
    settings = resolve([first.settings.layer(""), Layer("", {"method.name": name})])
    pretend(PlannedRun(settings, tmp_path / "runs/foreign", ""), 70.0)
    return name


def test_code_that_a_folder_names_is_not_run_unless_it_is_allowed(run, foreign):
    code, out, err = run("results", "runs")
    assert code == 0
    assert "mine.Mine" not in out
    assert err.startswith("Left out runs/foreign: ")
    assert f"--allow-code {foreign}" in err
    code, out, err = run("results", "runs", "--allow-code", foreign)
    assert (code, err) == (0, "")
    assert "mine.Mine" in out
    assert "70.00" in out


def test_code_that_a_line_names_is_not_run_unless_it_is_allowed(run, foreign):
    assert run("results", "runs", "--out", "kept.jsonl", "--allow-code", foreign)[0] == 0
    code, out, err = run("results", "kept.jsonl")
    assert code == 0
    assert "70.00" not in out
    assert err.startswith("kept.jsonl: left out 1 line. ")
    assert f"--allow-code {foreign}" in err
    assert "70.00" in run("results", "kept.jsonl", "--allow-code", foreign)[1]
    again = run("results", "runs", "--out", "kept.jsonl", "--allow-code", foreign)[1]
    assert "in place of 2 earlier lines" in again


def test_a_line_that_this_version_cannot_run_is_left_out_with_the_reason(run, tmp_path, plan, pretend):
    for planned in plan().runs[:2]:
        pretend(planned, 61.0)
    assert run("results", "runs", "--out", "kept.jsonl")[0] == 0
    text = (tmp_path / "kept.jsonl").read_text()
    (tmp_path / "kept.jsonl").write_text(text.replace('"supervised"', '"nonsense"', 1))
    code, out, err = run("results", "kept.jsonl")
    assert code == 0
    assert "61.00" in out
    assert err.startswith("kept.jsonl: left out 1 line. ")
    assert "nonsense" in err


def test_a_run_that_went_further_wins_over_an_older_line(run, plan, pretend):
    made = plan().runs[0]
    pretend(made, 50.0, step=3)
    assert run("results", "runs", "--out", "kept.jsonl")[0] == 0
    shutil.rmtree(made.path)
    pretend(made, 61.0)
    assert "61.00" in run("results", "runs", "kept.jsonl")[1]


def test_the_folder_of_a_results_file_is_created(run, tmp_path, plan, pretend):
    pretend(plan().runs[0], 61.0)
    assert run("results", "runs", "--out", "new/folder/kept.jsonl")[0] == 0
    assert (tmp_path / "new/folder/kept.jsonl").exists()


def test_unfinished_runs_are_counted_when_they_are_stored(run, plan, pretend):
    made = plan()
    pretend(made.runs[0], 61.0, step=3)
    words = ("results", "runs", "--out", "kept[i].jsonl")
    assert run(*words)[1] == "Wrote 1 run to kept[i].jsonl, 1 not finished yet.\n"
    assert run(*words)[1] == "Wrote 1 run to kept[i].jsonl, in place of 1 earlier line, 1 not finished yet.\n"


def test_a_run_that_fails_is_reported_and_the_table_shows_the_others(run, monkeypatch):
    step = Trainer.step

    def failing(state):
        step(state)
        if state.settings.data.fold == 1:
            values = {name: state.step_counter * float("nan") for name in state.meters.names}
            state.meters.add(values, state.step_counter)

    monkeypatch.setattr(Trainer, "step", failing)
    code, out, err = run("reproduce", "tiny", "--methods", "supervised", "--labels", "10")
    assert code == 2
    assert "† 1 fold of 4 steps" in out
    first, last = err.splitlines()
    assert "fold1" in first
    assert "loss_labeled" in first
    assert "1 of 2 runs failed" in last


def test_a_signal_ends_the_command_with_advice_how_to_continue(run, monkeypatch):
    step = Trainer.step

    def interrupted(state):
        step(state)
        if state.steps_done == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Trainer, "step", interrupted)
    code, _, err = run("reproduce", "tiny", "--labels", "10")
    assert code == 128 + signal.SIGINT
    assert err == "Stopped and saved at step 2. Continue: the same command\n"


def test_a_signal_to_runs_at_once_ends_the_command_without_a_table(run, monkeypatch):
    def stopped(engine, runs):
        engine.stopped_by = signal.SIGTERM
        yield from ()

    monkeypatch.setattr(InParallel, "events", stopped)
    code, out, err = run("reproduce", "tiny", "--at-once", "2")
    assert (code, out) == (128 + signal.SIGTERM, "")
    assert err == "Stopped and saved. Continue: the same command\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reproduce", "mian"], "'mian'. Did you mean 'main'?"),
        (["reproduce", "main", "--methods", "mixup"], "method.name mixup"),
        (["reproduce", "main", "--labels", "four"], "--labels takes comma-separated whole numbers, got 'four'"),
        (["reproduce", "main", "--data", "cifar100", "--labels", "40"], "data.name cifar100 and data.labels 40"),
        (["reproduce", "main", "--set", "data.labels=10"], "data.labels cannot be set"),
        (["reproduce", "queue", "--steps", "0"], "train.steps must be in [1, 16777216], got 0 (from --steps 0)"),
        (["compare", "digits", "--methods", ""], "Unknown method ''"),
        (["results", STORED, "--at", ""], "--at takes comma-separated whole numbers, got ''"),
        (["reproduce", "noise"], "cifar10 and svhn are not in data. Add --download"),
        (["reproduce", "main", "--results", "nowhere.jsonl"], "Cannot read nowhere.jsonl"),
        (["results", "nowhere", "--out", "kept.jsonl"], "nowhere holds no run"),
        (["results", "nowhere.jsonl"], "Cannot read nowhere.jsonl"),
        (["results", "nowhere", "--out", "kept.jsonl", "--as", "md"], "--out stores runs"),
        (["results", STORED, "--as", "html"], "--as must be one of md, tex, csv, json, got 'html'"),
        (["results", STORED, "--reach", "90,most"], "--reach takes comma-separated percentages, got '90,most'"),
        (["results", STORED, "--reach", "101"], "--reach takes comma-separated percentages, got '101'"),
        (["results", STORED, "--at", "many"], "--at takes comma-separated whole numbers, got 'many'"),
    ],
)
def test_a_user_error_is_one_sentence_and_exit_code_2(run, tmp_path, words, message):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_help_names_every_table(run):
    _, out, _ = run("reproduce", "--help")
    assert all(name in out for name in paper.TABLES if name != "tiny")
