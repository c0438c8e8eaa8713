"""Processes that train; each costs a second or two of importing torch."""

import os
import signal
from pathlib import Path

import pytest

import aggmatch
from aggmatch.experiments import parallel as children
from aggmatch.experiments.parallel import AtOnce, Child, Event
from aggmatch.experiments.planned import Failure


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Lets children find the package where it is not installed."""
    monkeypatch.setenv("PYTHONPATH", str(Path(aggmatch.__file__).parents[1]))


def test_runs_are_trained_and_a_failing_one_leaves_the_others_alone(plan, pretend):
    finished, good, bad, *_ = plan().runs
    pretend(finished, 50.0)
    bad.path.mkdir(parents=True)
    (bad.path / "something").touch()
    events = list(AtOnce([finished, good, bad], 2).train())
    failures = [event for event in events if isinstance(event, Failure)]
    assert [(failure.run, failure.reason) for failure in failures] == [
        (bad, f"{bad.path} is not empty and holds no run. Choose another --out.")
    ]
    told = [(event.what, event.record and event.record["step"]) for event in events if event.run is good]  # type: ignore[union-attr]
    assert told == [("started", None), ("evaluated", 2), ("evaluated", 4), ("finished", None)]
    assert good.finished
    assert not any(event.run is finished for event in events)


def test_a_signal_saves_all_and_the_same_runs_go_on(plan):
    run, never = plan(train__steps=100_000).runs[:2]
    training = AtOnce([run, never], 1)
    events = []
    for event in training.train():
        events.append(event.what if isinstance(event, Event) else event.reason)
        if events[-1] == "evaluated" and not training.stopped_by:
            os.kill(os.getpid(), signal.SIGTERM)
    assert training.stopped_by == signal.SIGTERM
    assert (events[0], events[-1]) == ("started", "stopped")
    assert run.steps_done > 0
    assert never.state == "missing"
    done = run.steps_done
    again = AtOnce([run], 1).train()
    assert next(event for event in again if isinstance(event, Event) and event.record).record["step"] > done  # type: ignore[index]
    again.close()


def test_giving_up_on_the_events_leaves_no_process_behind(plan, monkeypatch):
    made = []

    class Recorded(Child):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self.process)

    monkeypatch.setattr(children, "Child", Recorded)
    training = AtOnce(plan(train__steps=100_000).runs, 2).train()
    next(training)
    next(training)
    sessions = [os.getsid(process.pid) for process in made]
    training.close()
    assert sessions == [process.pid for process in made], "Ctrl-C in the terminal must not reach them directly"
    assert [process.poll() for process in made] == [-signal.SIGKILL] * 2


def test_cores_are_shared_unless_the_user_says_otherwise(plan, monkeypatch, tmp_path):
    monkeypatch.setattr(children, "cores", lambda: 7)
    assert AtOnce([], 2).threads == 3
    assert AtOnce([], 20).threads == 1
    seen = []
    monkeypatch.setattr("subprocess.Popen", lambda *_, env, **__: seen.append(env["OMP_NUM_THREADS"]))
    run = plan().runs[0]
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    Child(run, tmp_path, 3)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    Child(run, tmp_path, 3)
    assert seen == ["3", "1"]


def test_only_new_and_whole_lines_of_a_log_are_told(plan, pretend, tmp_path, monkeypatch):
    run = plan().runs[0]
    pretend(run, 50.0, step=3)
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: None)
    child = Child(run, tmp_path, 1)
    assert list(child.evaluations()) == []
    with run.folder.metrics.open("a") as file:
        file.write('{"step": 4, "loss": 1.0}\n{"step": 6, "accuracy_average": 1.0}\n{"step": 8, "accur')
    assert [record["step"] for record in child.evaluations()] == [6]
    with run.folder.metrics.open("a") as file:
        file.write('acy_average": 2.0}\n')
    assert [record["step"] for record in child.evaluations()] == [8]
    run.folder.metrics.write_text('{"step": 2, "accuracy_average": 1.0}\n')  # cut back by a resume
    assert list(child.evaluations()) == []
    with run.folder.metrics.open("a") as file:
        file.write('{"step": 3, "accuracy_average": 3.0}\n')
    assert [record["step"] for record in child.evaluations()] == [3]


def test_a_child_that_dies_without_a_word_is_named_by_its_code(plan, tmp_path, monkeypatch):
    class Dead:
        returncode = -9

    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: Dead())
    child = Child(plan().runs[0], tmp_path, 1)
    assert child.reason() == "It ended with code -9 and without a word."
    child.errors.write_text("Warning: something\nError: Too little memory.\n")
    assert child.reason() == "Too little memory."
