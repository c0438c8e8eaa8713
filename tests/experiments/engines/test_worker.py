"""One run on a machine of a cluster: its folder there, and what it sends."""

import os
import signal
import subprocess
import tempfile
import time
from collections import Counter

from aggmatch.experiments.engines.worker import Order, scratch_folder, stopping_when, train_run
from aggmatch.signals import signals


def messages(run, pieces=()):
    """All messages of a run."""
    return list(train_run(Order(run.to_dict(), download=False), pieces, lambda: False))


def test_files_are_sent_after_each_checkpoint_and_at_the_end_but_only_if_they_changed(plan):
    run = plan(train__steps=6).runs[0]
    sent = messages(run)
    kinds = [message.kind for message in sent]
    assert kinds == ["started", *["logged", "piece", "files"] * 3, "piece", "files", "finished"]
    sizes = [len(message.value) for message in sent if message.kind == "piece"]
    assert sizes[-1] < 3 * sizes[0], "no old checkpoint travels again"
    names = [message.value for message in sent if message.kind == "files"]
    assert Counter(name.split("/")[0] for name in names[-1])["checkpoints"] == 2
    assert "summary.json" in names[-1]
    assert not run.path.exists(), "the folder at home is not touched from here"


def test_a_run_on_missing_data_fails_with_a_sentence_and_sends_no_files(plan, tmp_path):
    values = plan().runs[0].to_dict()
    values["settings"]["data"]["name"] = "cifar10"
    values["settings"]["runtime"]["data_dir"] = str(tmp_path / "nowhere")
    kinds = [(m.kind, m.value) for m in train_run(Order(values, download=False), (), lambda: False)]
    assert [kind for kind, _ in kinds] == ["started", "failed"]
    assert str(tmp_path / "nowhere") in kinds[-1][1]


def test_a_folder_that_a_killed_process_left_is_deleted_and_others_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    over = subprocess.Popen(["true"])
    over.wait()
    monkeypatch.setattr("aggmatch.experiments.engines.worker.machine", lambda: "n1")
    left = [f"aggmatch-n1-{over.pid}-x", f"aggmatch-n1-{os.getpid()}-x", f"aggmatch-n2-{over.pid}-x"]
    dead, alive, foreign = (tmp_path / name for name in left)
    for folder in (dead, alive, foreign):
        folder.mkdir()
    with scratch_folder() as scratch:
        assert (dead.exists(), alive.exists(), foreign.exists()) == (False, True, True)
        assert scratch.stat().st_mode & 0o777 == 0o700
    assert not scratch.exists()


def test_being_asked_to_stop_is_a_signal_to_the_process(monkeypatch):
    monkeypatch.setattr("aggmatch.experiments.engines.worker.POLL", 0.001)
    with signals() as received, stopping_when(lambda: True):
        while not received:
            time.sleep(0.01)
    assert received == [signal.SIGTERM]
