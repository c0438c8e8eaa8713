"""Training as a process of its own: progress, result, failures, kills."""

import json
import signal
import time
from pathlib import Path

import pytest
from tests.page.browser import wait
from tests.page.conftest import BACKBONE, CHANGES, true_class

from aggmatch.errors import AggMatchError
from aggmatch.page.project import Project
from aggmatch.page.result import Result, Round
from aggmatch.page.rounds import Rounds
from aggmatch.page.worker import Status, settings_of
from aggmatch.runs.stored import read_run
from aggmatch.storage.annotations import label_events, replay


def state(count: int = 8):
    return replay(label_events({f"{k:02d}.png": true_class(k) for k in range(count)}))


def ended(rounds: Rounds) -> bool:
    rounds.follow()
    return rounds.job is None


@pytest.fixture
def rounds(photos: Path, tmp_path: Path):
    found = Rounds(tmp_path / "out", photos, CHANGES)
    yield found
    found.stop()


def test_a_round_is_an_ordinary_run_with_a_result_for_the_page(rounds: Rounds, tmp_path: Path):
    rounds.train(state(), 30)
    with pytest.raises(AggMatchError, match="being trained already"):
        rounds.train(state(), 30)
    assert rounds.progress()["kind"] == "train"  # type: ignore[index]
    wait(lambda: ended(rounds), "the end of training")
    assert rounds.failure == ""
    assert rounds.result
    assert rounds.result.probs.shape == (30, 2)
    assert len(rounds.suggested()) == 22
    assert rounds.history()[0].labels == 8
    assert rounds.done
    assert read_run(rounds.done.run, allow=[BACKBONE]).labels == 8
    again = Rounds(tmp_path / "out", rounds.images, CHANGES)
    assert again.result
    assert again.checked() == rounds.checked()


def test_preparation_suggests_images_before_the_first_label(project: Project):
    try:
        project.rounds.prepare(list(project.index.names.values()))
        wait(project.rounds.suggestions.exists, "suggestions")
        assert len(project.rounds.suggested()) == 30
        wait(lambda: ended(project.rounds), "the end of the preparation")
        assert project.rounds.failure == ""
        assert len(project.lists.rows("queue")) == 30
    finally:
        project.rounds.stop()


def test_a_killed_process_is_reported_and_the_old_result_stays(trained: Project):
    rounds = trained.rounds
    before = rounds.result
    rounds.train(trained.notes.state, 30)
    assert rounds.job
    rounds.job.process.send_signal(signal.SIGKILL)
    wait(lambda: ended(rounds), "the end of the process")
    assert "signal 9" in rounds.failure
    assert rounds.result is before
    assert not trained.train_due()


def test_a_wrong_setting_fails_in_its_own_words(photos: Path, tmp_path: Path):
    rounds = Rounds(tmp_path / "out", photos, [("--set train.steps=0", {"train.steps": 0})])
    rounds.train(state(), 30)
    wait(lambda: ended(rounds), "the end of the process")
    assert "train.steps" in rounds.failure


def test_a_preparation_that_fails_does_not_stop_anything(photos: Path, tmp_path: Path):
    broken: list[tuple[str, dict[str, object]]] = [*CHANGES, ("--set model.name=gone", {"model.name": "gone"})]
    project = Project(photos, tmp_path / "out", changes=broken)
    project.rounds.prepare(list(project.index.names.values()))
    wait(lambda: ended(project.rounds), "the end of the process")
    assert "gone" in project.state()["problems"][0]
    assert project.rounds.failure == ""
    assert len(project.lists.rows("queue")) == 30


def test_training_waits_for_the_preparation_and_begins_then(project: Project):
    for event in label_events({f"{number:02d}.png": true_class(number) for number in range(4)}):
        project.notes.add(event)
    project.rounds.prepare(list(project.index.names.values()))
    project.train()
    assert project.rounds.job
    assert project.state()["training"]["progress"]["wanted"]
    project.rounds.job.process.send_signal(signal.SIGKILL)  # faster than its end; training does without
    wait(lambda: (project.state()["training"]["progress"] or {}).get("kind") == "train", "training")
    project.rounds.stop()
    assert project.state()["training"]["progress"] is None


def test_a_stage_tells_the_time_left(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("aggmatch.page.worker.PAUSE", -1.0)
    report = Status(tmp_path / "status.json").stage("Reading")
    time.sleep(0.01)
    report(1, 1_000_000)
    assert json.loads((tmp_path / "status.json").read_text())["left"].endswith("left")
    report(1_000_000, 1_000_000)
    assert json.loads((tmp_path / "status.json").read_text())["left"] == ""


def test_many_images_have_fewer_views_each():
    views = [settings_of("photos", None, images, CHANGES[:0]).views.cached for images in (200, 5_000, 10_000, 50_000)]
    assert views == [4, 4, 2, 1]


def test_stopping_leaves_no_process(rounds: Rounds):
    rounds.train(state(), 30)
    assert rounds.job
    process = rounds.job.process
    time.sleep(0.2)
    rounds.stop()
    assert process.poll() is not None
    assert rounds.progress() is None


def test_old_rounds_are_removed_and_a_broken_one_is_passed_over(trained: Project):
    out = trained.out
    for number in range(2, 6):
        (out / f"{number:04d}").mkdir()
    (out / "0005" / "result.json").write_text('{"names": [')
    again = Rounds(out, trained.root)
    assert again.done
    assert again.done.path == out / "0001"
    again.remove_old()
    assert [folder.number for folder in again.folders()] == [3, 4, 5]


def test_a_label_that_the_model_supports_unseen_is_not_doubted(trained: Project):
    assert trained.rounds.done
    doubts = [["03.png", "left", "top", 0.4], ["05.png", "top", "left", -0.1]]
    trained.rounds.done.checked.write_text(json.dumps({"estimate": None, "doubts": doubts}))
    estimate, found = trained.rounds.checked()
    assert estimate is None
    assert [doubt.name for doubt in found] == ["03.png"]


def test_a_result_survives_the_disk(trained: Project, tmp_path: Path):
    result = trained.rounds.result
    assert result
    result.write(Round(tmp_path))
    read = Result.read(Round(tmp_path))
    assert read
    assert (read.names, read.order, read.labeled) == (result.names, result.order, 12)
    assert (read.probs == result.probs).all()
    assert (read.why["source"] == result.why["source"]).all()
