"""Runs that travel to a cluster; here its machines are generators in this process."""

import errno
import os
import signal
from collections import deque

import pytest

from aggmatch.errors import AggMatchError
from aggmatch.experiments.engines import dispatch
from aggmatch.experiments.engines.dispatch import MachineLost, RemoteTraining
from aggmatch.experiments.engines.worker import Message, train_run
from aggmatch.experiments.planned import Event
from aggmatch.training.run import Run


class Job:
    """A run on a machine, which is lost before the message with this number."""

    def __init__(self, title, order, pieces, cluster, lost_at):
        self.title, self.lost_at, self.count = title, lost_at, 0
        self.had_files = bool(pieces)
        self.messages = train_run(order, pieces, lambda: cluster.stopping)


class FakeCluster:
    """Machines that train one after the other. losses: title → numbers of messages after which machines are lost."""

    needs = "1 CPU"

    def __init__(self, losses=(), spoil=lambda _, message: message):
        self.losses, self.spoil = {title: deque(numbers) for title, numbers in dict(losses).items()}, spoil
        self.jobs: list[Job] = []
        self.canceled: list[str] = []
        self.stopping = False

    def submit(self, title, order, pieces):
        numbers = self.losses.get(title)
        self.jobs.append(Job(title, order, list(pieces), self, numbers.popleft() if numbers else None))
        return self.jobs[-1]

    def ready(self, jobs, seconds):
        return jobs[:1]

    def receive(self, job):
        job.count += 1
        if job.lost_at is not None and job.count > job.lost_at:
            job.messages.close()
            raise MachineLost("the power failed")
        return self.spoil(job, next(job.messages))

    def stop(self):
        self.stopping = True

    def cancel(self, job):
        self.canceled.append(job.title)
        job.messages.close()


def seen(events, run):
    """What happened to a run: words, and steps of log lines."""
    own = [event for event in events if event.run is run]
    return [
        event.reason if event.what == "failed" else event.record["step"] if event.record else event.what
        for event in own
    ]


@pytest.fixture
def undisturbed(plan, tmp_path, follow):
    """The same runs, trained here."""
    runs = plan().runs[:2]
    copies = [type(run)(run.settings, tmp_path / "undisturbed" / run.path.name, run.title) for run in runs]
    for run in copies:
        run.complete(follow)
    return copies


def test_a_run_whose_machine_is_lost_resumes_from_the_files_that_came_home(plan, undisturbed, content):
    runs = plan().runs[:2]
    cluster = FakeCluster({runs[0].title: [4]})  # started, logged, a piece, the list of files
    events = list(RemoteTraining(runs, cluster).train())
    assert seen(events, runs[0]) == ["started", 2, "interrupted", "started", 4, "finished"]
    assert seen(events, runs[1]) == ["started", 2, 4, "finished"]
    assert [job.had_files for job in cluster.jobs] == [False, False, True]
    assert [content(run.path) for run in runs] == [content(run.path) for run in undisturbed]
    assert all(run.read().finished for run in runs)


def test_a_run_whose_machine_is_lost_within_a_parcel_starts_from_the_files_before(plan, undisturbed, content):
    run = plan().runs[0]
    cluster = FakeCluster({run.title: [3]})
    events = list(RemoteTraining([run], cluster).train())
    assert seen(events, run) == ["started", 2, "interrupted", "started", 2, 4, "finished"]
    assert content(run.path) == content(undisturbed[0].path)


def test_the_folder_keeps_two_checkpoints_and_no_lock_of_the_machine(plan):
    run = plan(train__steps=10).runs[0]
    list(RemoteTraining([run], FakeCluster()).train())
    assert len(list(run.folder.checkpoints.iterdir())) == 2
    assert {path.name for path in run.path.iterdir()} >= {"config.json", "split.json", "metrics.jsonl", "summary.json"}


def test_a_run_is_given_up_if_machines_are_lost_again_and_again_without_a_new_checkpoint(plan):
    bad, good = plan().runs[:2]
    cluster = FakeCluster({bad.title: [1] * 9})
    events = list(RemoteTraining([bad, good], cluster).train())
    assert seen(events, bad)[:4] == ["started", "interrupted"] * 2
    assert seen(events, bad).count("interrupted") == dispatch.RETRIES
    assert "the power failed" in seen(events, bad)[-1]
    assert good.finished
    assert not bad.path.exists()


@pytest.mark.parametrize("function", ["unpack", "pack"])  # of files that arrive, and of those that travel again
def test_a_full_disk_fails_one_run_and_the_others_go_on(function, plan, monkeypatch):
    bad, good = plan().runs[:2]
    real = getattr(dispatch, function)

    def full(*arguments):
        if bad.path in arguments:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(dispatch, function, full)
    cluster = FakeCluster({bad.title: [4]})
    events = list(RemoteTraining([bad, good], cluster).train())
    assert "No space left on device" in seen(events, bad)[-1]
    assert bad.title in cluster.canceled
    assert good.finished


def test_a_new_checkpoint_gives_a_run_new_attempts(plan):
    run = plan(train__steps=20).runs[0]
    cluster = FakeCluster({run.title: [4] * 8})  # one checkpoint further each time
    events = list(RemoteTraining([run], cluster).train())
    assert seen(events, run).count("interrupted") == 8
    assert run.finished


def test_if_a_folder_holds_other_things_or_a_run_fails_the_others_go_on(plan, pretend):
    finished, busy, failing, good = plan().runs[:4]
    pretend(finished, 50.0)
    busy.path.mkdir(parents=True)
    (busy.path / "something").touch()
    cluster = FakeCluster()
    submit = cluster.submit

    def submit_other_version(title, order, pieces):
        other = type(order)(order.run, order.download, order.folder, "0.0.1")
        return submit(title, other if title == failing.title else order, pieces)

    cluster.submit = submit_other_version
    events = list(RemoteTraining([finished, busy, failing, good], cluster).train())
    assert seen(events, finished) == []
    assert str(busy.path) in seen(events, busy)[0]
    assert "version 0.0.1" in seen(events, failing)[-1]
    assert not failing.path.exists()
    assert good.finished


def test_an_error_of_training_names_the_folder_at_home(plan, monkeypatch):
    def fail(settings, path, download):
        raise AggMatchError(f"Cannot lock {path / '.lock'}.")

    monkeypatch.setattr("aggmatch.experiments.engines.worker.start_or_resume", fail)
    run = plan().runs[0]
    events = list(RemoteTraining([run], FakeCluster()).train())
    assert seen(events, run) == ["started", f"Cannot lock {run.path / '.lock'}."]


def test_a_run_that_diverges_fails_and_its_last_good_checkpoint_comes_home(plan, monkeypatch):
    run = plan(train__steps=20).runs[0]
    check = Run.check_finite

    def diverge(live, **options):
        if live.state.steps_done > 4:
            raise AggMatchError("loss is not finite")
        check(live, **options)

    monkeypatch.setattr(Run, "check_finite", diverge)
    events = list(RemoteTraining([run], FakeCluster()).train())
    assert seen(events, run) == ["started", 2, 4, "loss is not finite"]
    assert run.state == "at step 4"


def test_files_that_cannot_be_unpacked_end_only_their_run(plan):
    bad, good = plan().runs[:2]

    def spoil(job, message):
        return Message("piece", b"no archive") if (job.title, message.kind) == (bad.title, "piece") else message

    cluster = FakeCluster(spoil=spoil)
    events = list(RemoteTraining([bad, good], cluster).train())
    assert "damaged" in seen(events, bad)[-1]
    assert cluster.canceled == [bad.title]
    assert good.finished


def test_a_signal_saves_the_runs_in_training_and_those_that_wait_do_not_start(plan, monkeypatch):
    monkeypatch.setattr("aggmatch.experiments.engines.worker.POLL", 0.01)
    run, never = plan(train__steps=100_000).runs[:2]
    cluster = FakeCluster()
    training = RemoteTraining([run, never], cluster)
    events = []
    for event in training.train():
        events.append(event)
        if isinstance(event, Event) and event.record and not training.stopped_by:
            os.kill(os.getpid(), signal.SIGTERM)
    assert training.stopped_by == signal.SIGTERM
    assert seen(events, run)[-1] == "stopped"
    assert 0 < run.folder.records()[-1]["step"] <= run.steps_done < 100_000
    assert cluster.canceled == [never.title]
    assert not never.path.exists()


def test_closing_the_generator_ends_all_jobs_and_frees_the_folders(plan):
    runs = plan(train__steps=100_000).runs[:2]
    cluster = FakeCluster()
    training = RemoteTraining(runs, cluster).train()
    next(training)
    again = RemoteTraining(runs[:1], FakeCluster()).train()
    assert "Another process" in next(again).reason
    training.close()
    assert cluster.canceled == [run.title for run in runs]
    assert not any(run.path.exists() for run in runs)


def test_a_cluster_that_takes_no_run_is_reported(plan, monkeypatch):
    monkeypatch.setattr(dispatch, "PATIENCE", -1.0)
    cluster = FakeCluster()
    with pytest.warns(UserWarning, match="1 CPU"):
        list(RemoteTraining(plan().runs[:1], cluster).train())
