"""What the label page knows: lists, changes of others, files that come and go."""

import json
import time
from pathlib import Path

import pytest
from tests.page.conftest import CHANGES, ODD

from aggmatch.errors import AggMatchError
from aggmatch.page.index import image_id
from aggmatch.page.project import ConflictError, Project

FIRST, SECOND = image_id("00.png"), image_id("01.png")


def label(project: Project, name: str, *keys: str) -> None:
    if name not in project.notes.state.classes:
        project.add({"event": "class", "name": name})
    project.add({"event": "label", "ids": list(keys), "class": name})


def keys(project: Project, name: str, of_class: str = "") -> list[str]:
    return [item[0] for item in project.lists.rows(name, of_class)]


def again(project: Project) -> Project:
    """The same project after a restart of the server."""
    return Project(project.root, project.out, changes=CHANGES)


def test_images_have_ids_that_survive_a_restart(project: Project):
    assert len(project.index.names) == 30
    assert again(project).index.names == project.index.names
    assert project.index.file(FIRST).name == "00.png"


def test_labelled_and_marked_images_leave_the_queue(project: Project):
    label(project, "rose", FIRST)
    project.add({"event": "skip", "ids": [SECOND]})
    queue = keys(project, "queue")
    assert len(queue) == 28
    assert not {FIRST, SECOND} & set(queue)
    assert keys(project, "labeled") == [FIRST]
    assert keys(project, "skipped") == [SECOND]
    counts = project.state()["counts"]
    assert counts == {"images": 30, "labeled": 1, "unsure": 0, "skipped": 1, "left": 28}


def test_undo_takes_back_one_step_after_the_other_also_after_a_restart(project: Project):
    label(project, "rose", FIRST)
    label(project, "rose", SECOND)
    project = again(project)
    assert project.undo({"version": project.stamp}) == "rose: 1 image"
    assert keys(project, "labeled") == [FIRST]
    project.undo({"version": project.stamp})
    assert project.undo({"version": project.stamp}) == "new class rose"
    assert project.state()["undo"] == ""
    with pytest.raises(AggMatchError, match="nothing to undo"):
        project.undo({"version": project.stamp})


def test_undo_is_refused_if_another_tab_did_something_the_user_has_not_seen(project: Project):
    label(project, "rose", FIRST)
    seen = project.stamp
    label(project, "rose", SECOND)
    with pytest.raises(ConflictError, match="elsewhere"):
        project.undo({"version": seen})
    assert len(keys(project, "labeled")) == 2


def test_an_undo_that_is_sent_twice_undoes_once(project: Project):
    label(project, "rose", FIRST)
    label(project, "rose", SECOND)
    request = {"version": project.stamp, "id": "abc"}
    project.undo(request)
    project.undo(request)
    assert keys(project, "labeled") == [FIRST]


def test_a_label_of_a_class_that_another_tab_renamed_is_a_conflict(project: Project):
    label(project, "rose", FIRST)
    project.add({"event": "rename", "from": "rose", "to": "tulip"})
    with pytest.raises(ConflictError, match="no class 'rose' any more"):
        project.add({"event": "label", "ids": [SECOND], "class": "rose"})


def test_a_second_server_sees_the_labels_of_the_first(project: Project):
    other = again(project)
    before = other.state()["version"]
    label(project, ODD, FIRST)
    assert other.state(before)["changes"] == {FIRST: [ODD, None]}


def test_changes_since_a_version_of_an_earlier_start_are_unknown(project: Project):
    label(project, "rose", FIRST)
    assert again(project).state(project.stamp)["changes"] is None
    assert project.state("nonsense")["changes"] is None


def test_labels_by_hand_appear(project: Project):
    label(project, "rose", FIRST)
    with project.notes.path.open("a") as file:
        file.write('{"event": "label", "files": ["01.png"], "class": "tulip"}\nnonsense\n')
    state = project.state()
    assert [each["name"] for each in state["classes"]] == ["rose", "tulip"]
    assert state["problems"] == ["labels.jsonl, line 4: it is not JSON."]


def test_a_vanished_file_keeps_its_label_and_is_reported(project: Project):
    label(project, "rose", FIRST)
    (project.root / "00.png").unlink()
    project.index.scanned = float("-inf")
    assert project.index.scan()
    state = project.state()
    assert state["counts"]["images"] == 29
    assert "1 label of files that are not in the folder" in state["problems"][0]
    assert project.notes.state.labels == {"00.png": "rose"}
    with pytest.raises(ConflictError, match="gone"):
        project.add({"event": "label", "ids": [FIRST], "class": "rose"})


def test_files_that_move_between_folders_are_other_images(project: Project):
    (project.root / "rose").mkdir()
    (project.root / "00.png").rename(project.root / "rose" / "00.png")
    project.index.scanned = float("-inf")
    project.index.scan()
    assert image_id("rose/00.png") in project.index.names
    assert FIRST not in project.index.names


def test_images_of_the_test_folder_are_not_shown(project: Project):
    (project.root / "test" / "rose").mkdir(parents=True)
    (project.root / "00.png").rename(project.root / "test" / "rose" / "00.png")
    assert len(again(project).index.names) == 29


def test_names_of_folders_become_labels_on_request(project: Project):
    for name in ("rose", "tulip"):
        (project.root / name).mkdir()
    (project.root / "00.png").rename(project.root / "rose" / "00.png")
    (project.root / "01.png").rename(project.root / "tulip" / "01.png")
    project = again(project)
    assert project.state()["importable"] == "2 folders"
    assert project.lists.labels() == {}
    project.import_labels()
    assert project.lists.labels() == {"rose/00.png": "rose", "tulip/01.png": "tulip"}
    assert project.state()["importable"] == ""


def test_a_table_of_labels_is_taken_over_on_request(project: Project):
    (project.root / "labels.csv").write_text("file,label\n00.png,rose\n01.png,tulip\n")
    assert project.state()["importable"] == "labels.csv"
    project.import_labels()
    assert project.lists.labels() == {"00.png": "rose", "01.png": "tulip"}


def test_classes_have_keys_that_are_no_commands(project: Project):
    for number in range(30):
        project.add({"event": "class", "name": f"class {number}"})
    found = [each["key"] for each in project.state()["classes"]]
    assert found[:10] == [*"123456789", "b"]
    assert found[-1] == ""
    assert not set("acgnsuvwx") & set(found)


def test_without_images_or_folder_the_error_names_it(tmp_path: Path):
    with pytest.raises(AggMatchError, match="no folder .*gone"):
        Project(tmp_path / "gone", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(AggMatchError, match="no images in .*empty"):
        Project(tmp_path / "empty", tmp_path / "out")


def test_labels_that_cannot_be_saved_are_an_error_at_the_start(photos: Path, tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(AggMatchError, match="Labels cannot be saved.*file"):
        Project(photos, tmp_path / "out", labels_file=tmp_path / "file" / "labels.jsonl")


def test_the_folder_of_the_labels_is_made(photos: Path, tmp_path: Path):
    project = Project(photos, tmp_path / "out", labels_file=tmp_path / "new" / "labels.jsonl")
    label(project, "rose", FIRST)
    assert (tmp_path / "new" / "labels.jsonl").exists()


# After training ---------------------------------------------------------------------------------------------------


def test_the_review_lists_hold_unlabelled_images_in_the_order_of_their_consensus(trained: Project):
    doubtful = trained.lists.rows("doubtful")
    assert len(doubtful) == 18
    assert [item[5] for item in doubtful] == sorted(item[5] for item in doubtful)
    for name in ("top", "left"):
        confident = trained.lists.rows("confident", name)
        assert {item[3] for item in confident} <= {name}
        assert [item[5] for item in confident] == sorted((item[5] for item in confident), reverse=True)


def test_a_wrong_label_is_doubted_until_somebody_confirms_it(trained: Project):
    wrong = image_id("03.png")
    items = {item[0]: item for item in trained.lists.rows("wrong")}
    assert items[wrong][1:4] == ["left", None, "top"]
    trained.add({"event": "label", "ids": [wrong], "class": "left"})
    assert wrong not in keys(trained, "wrong")


def test_a_corrected_label_is_not_doubted_any_more(trained: Project):
    trained.add({"event": "label", "ids": [image_id("03.png")], "class": "top"})
    assert image_id("03.png") not in keys(trained, "wrong")


def test_the_estimate_comes_with_its_interval_and_a_sentence(trained: Project):
    training = trained.state()["training"]
    estimate = training["estimate"]
    assert estimate["labels"] == 12
    assert estimate["low"] < estimate["accuracy"] < estimate["high"]
    assert training["history"] == [estimate]
    assert "too few labels" in training["advice"]


def test_training_is_due_after_enough_new_labels(trained: Project):
    trained.train_every = 2
    assert not trained.train_due()
    label(trained, "top", image_id("13.png"), image_id("15.png"))
    assert trained.train_due()
    trained.train_every = 0
    assert not trained.train_due()


def test_50000_images_are_listed_in_seconds(project: Project):
    names = [f"folder {number % 100}/{number:06d}.jpg" for number in range(50_000)]
    project.index.names = {image_id(name): name for name in names}
    project.index.keys = project.index.shown = {name: key for key, name in project.index.names.items()}
    begin = time.perf_counter()
    assert len(json.dumps(project.lists.rows("queue"))) > 1_000_000
    project.state()
    assert time.perf_counter() - begin < 10  # on a busy machine


def test_asking_for_news_does_not_look_through_the_folder_again(project: Project, monkeypatch: pytest.MonkeyPatch):
    project.state()
    monkeypatch.setattr("aggmatch.page.project.folders_of_classes", None)
    assert project.state()["importable"] == ""


def test_a_model_speaks_of_renamed_and_merged_classes_by_their_new_names(trained: Project):
    doubted = trained.lists.doubted()
    trained.add({"event": "rename", "from": "left", "to": "west"})
    assert trained.state()["training"]["classes"] == ["west", "top"]
    assert {guess for guess, _, _ in trained.lists.guesses().values()} == {"west", "top"}
    assert trained.lists.doubted() == doubted
    assert {guess.name for guess in trained.lists.predictions().values()} == {"west", "top"}
    trained.add({"event": "rename", "from": "top", "to": "west"})
    assert trained.state()["training"]["classes"] == ["west"]
    assert len(trained.lists.rows("confident", "west")) == 18


def test_a_folder_that_is_gone_for_a_while_is_an_error_and_no_label_is_lost(project: Project):
    project.add({"event": "class", "name": "rose"})
    label(project, "rose", image_id("00.png"))
    project.root.rename(project.root.with_name("elsewhere"))
    with pytest.raises(AggMatchError, match="folder is gone"):
        label(project, "rose", image_id("01.png"))
    with pytest.raises(AggMatchError, match="folder is gone"):
        project.state()
    project.root.with_name("elsewhere").rename(project.root)
    label(project, "rose", image_id("01.png"))
    assert project.state()["counts"]["labeled"] == 2
