"""Processes that train; each takes a second or two to import torch."""

import os
import signal

import pytest

from aggmatch.experiments.engines import local
from aggmatch.experiments.engines.local import Child, InParallel, InTurn
from aggmatch.experiments.planned import Event, PlannedRun
from aggmatch.settings import resolve

pytestmark = pytest.mark.usefixtures("importable")


def test_if_a_run_in_turn_fails_the_others_are_trained(plan, follow):
    runs = plan(folds=1).runs
    for run in runs[:2]:
        run.path.mkdir(parents=True)
        (run.path / "something").touch()
    failures = list(InTurn(follow).train(runs, quiet=True))
    assert [failure.run.title for failure in failures] == [run.title for run in runs[:2]]
    assert str(runs[0].path) in failures[0].reason
    assert [run.finished for run in runs] == [False, False, True, True]


def test_runs_are_trained_and_if_one_fails_the_others_go_on(plan, pretend):
    finished, good, bad, *_ = plan().runs
    pretend(finished, 50.0)
    bad.path.mkdir(parents=True)
    (bad.path / "something").touch()
    events = list(InParallel(2).events([finished, good, bad]))
    failures = [event for event in events if event.what == "failed"]
    assert [failure.run for failure in failures] == [bad]
    assert str(bad.path) in failures[0].reason
    seen = [(event.what, event.record and event.record["step"]) for event in events if event.run is good]
    assert seen == [("started", None), ("logged", 2), ("logged", 4), ("finished", None)]
    assert good.finished
    assert not any(event.run is finished for event in events)


def test_a_signal_saves_all_runs_and_they_can_be_resumed(plan):
    run, never = plan(train__steps=100_000).runs[:2]
    training = InParallel(1)
    events = []
    for event in training.events([run, never]):
        events.append(event.what if isinstance(event, Event) else event.reason)
        if events[-1] == "logged" and not training.stopped_by:
            os.kill(os.getpid(), signal.SIGTERM)
    assert training.stopped_by == signal.SIGTERM
    assert (events[0], events[-1]) == ("started", "stopped")
    assert run.steps_done > 0
    assert never.state == "missing"
    done = run.steps_done
    again = InParallel(1).events([run])
    assert next(event for event in again if isinstance(event, Event) and event.record).record["step"] > done  # type: ignore[index]
    again.close()


def test_closing_the_generator_leaves_no_process_behind(plan, monkeypatch):
    made = []

    class Recorded(Child):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self.process)

    monkeypatch.setattr(local, "Child", Recorded)
    training = InParallel(2).events(plan(train__steps=100_000).runs)
    next(training)
    next(training)
    sessions = [os.getsid(process.pid) for process in made]
    training.close()
    assert sessions == [process.pid for process in made], "Ctrl-C in the terminal must not reach them directly"
    assert [process.poll() for process in made] == [-signal.SIGKILL] * 2


def test_runs_share_the_cores_unless_the_user_sets_the_threads(plan, monkeypatch, tmp_path):
    monkeypatch.setattr(local, "cores", lambda: 7)
    assert InParallel(2).threads == 3
    assert InParallel(20).threads == 1
    seen = []
    monkeypatch.setattr("subprocess.Popen", lambda *_, env, **__: seen.append(env["OMP_NUM_THREADS"]))
    run = plan().runs[0]
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    Child(run, tmp_path, 0, 3)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    Child(run, tmp_path, 1, 3)
    assert seen == ["3", "1"]


def test_only_new_and_whole_lines_of_a_log_are_read(plan, pretend, tmp_path, monkeypatch):
    run = plan().runs[0]
    pretend(run, 50.0, step=3)
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: None)
    child = Child(run, tmp_path, 0, 1)
    assert list(child.new_records()) == []
    with run.folder.metrics.open("a") as file:
        file.write('{"step": 4, "loss": 1.0}\n{"step": 6, "accuracy_average": 1.0}\n{"step": 8, "accur')
    assert [record["step"] for record in child.new_records()] == [4, 6]
    with run.folder.metrics.open("a") as file:
        file.write('acy_average": 2.0}\n')
    assert [record["step"] for record in child.new_records()] == [8]
    run.folder.metrics.write_text('{"step": 2, "accuracy_average": 1.0}\n')  # cut back by a resume
    assert list(child.new_records()) == []
    with run.folder.metrics.open("a") as file:
        file.write('{"step": 3, "accuracy_average": 3.0}\n')
    assert [record["step"] for record in child.new_records()] == [3]


def test_the_reason_of_a_failure_is_the_last_line_printed_or_the_exit_code(plan, tmp_path, monkeypatch):
    class Dead:
        returncode = -9

    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: Dead())
    child = Child(plan().runs[0], tmp_path, 0, 1)
    assert "code -9" in child.reason()
    child.errors.write_text("Warning: something\nError: Too little memory.\n")
    assert child.reason() == "Too little memory."


def test_code_that_the_settings_name_is_allowed_on_the_command_line_of_the_child(plan, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("from aggmatch.methods.supervised import Supervised\n\nMine = Supervised\n")
    name = f"{tmp_path / 'mine.py'}:Mine"
    words: list[list[str]] = []
    monkeypatch.setattr("subprocess.Popen", lambda given, **_: words.append(given))
    settings = resolve({"method.name": name})
    Child(PlannedRun(settings, tmp_path / "run", "mine"), tmp_path, 0, 1)
    Child(plan().runs[0], tmp_path, 1, 1)
    assert words[0][words[0].index("--allow-code") + 1] == name
    assert "--allow-code" not in words[1]
