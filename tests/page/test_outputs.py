"""Files sorted into folders of classes: the user's own files stay as they are."""

import errno
import shutil
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.page.conftest import BACKBONE, ODD

from aggmatch.data import load
from aggmatch.errors import AggMatchError
from aggmatch.page.outputs import folder_names, labels_csv, onnx_file, sort_files
from aggmatch.page.project import Project


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("how", ["copy", "link"])
def test_files_are_copied_or_linked_and_never_moved(trained: Project, how: str):
    before = content(trained.root)
    said = sort_files(trained, "predictions", how)
    assert said["files"] == 30
    assert content(trained.root) == before
    target = Path(str(said["folder"]))
    assert target.parent == trained.out
    assert {folder.name for folder in target.iterdir()} == {"top", "left"}
    files = list(target.rglob("*.png"))
    assert len(files) == 30
    assert all(file.is_symlink() == (how == "link") for file in files)
    assert sort_files(trained, "labels", how)["folder"] != said["folder"]


def test_files_of_the_same_name_get_numbers(project: Project):
    (project.root / "a").mkdir()
    shutil.copy(project.root / "00.png", project.root / "a" / "00.png")
    project = Project(project.root, project.out)
    project.add({"event": "class", "name": ODD})
    project.add({"event": "label", "ids": list(project.index.names), "class": ODD})
    target = Path(str(sort_files(project, "labels", "copy")["folder"]))
    (folder,) = target.iterdir()
    assert folder.name == "_img src=x onerror=alert(1)_"
    assert len(list(folder.iterdir())) == 31
    assert (folder / "00-2.png").exists()


def test_a_full_disk_says_how_far_it_came(trained: Project, monkeypatch: pytest.MonkeyPatch):
    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copy2", full)
    with pytest.raises(AggMatchError, match="after 0 of 12 files.*No space left.*as they were"):
        sort_files(trained, "labels", "copy")


def test_a_vanished_file_is_counted(trained: Project):
    (trained.root / "00.png").unlink()
    assert sort_files(trained, "labels", "copy")["missing"] == 1


def test_names_of_folders_are_safe_and_differ():
    names = folder_names(["a/b", "a:b", "..", "Rose", "rose", "x" * 300])
    assert names["a/b"] == "a_b"
    assert names["a:b"] == "a_b-2"
    assert names[".."] == "_"
    assert len({name.lower() for name in names.values()}) == 6
    assert all(len(name) <= 200 for name in names.values())


def test_training_reads_the_downloaded_table_and_the_log_alike(trained: Project, tmp_path: Path):
    table = tmp_path / "labels.csv"
    table.write_bytes(labels_csv(trained))
    from_table, from_log = (
        load(str(trained.root), side=8, holdout=0, labels_file=file) for file in (table, trained.notes.path)
    )
    assert from_table.fingerprint == from_log.fingerprint
    assert load(str(trained.root), side=8, holdout=0).fingerprint == from_log.fingerprint  # it is beside the images


def test_other_wishes_are_refused(trained: Project):
    with pytest.raises(AggMatchError, match="copy or link"):
        sort_files(trained, "labels", "move")


def test_the_model_may_name_all_code_that_the_page_was_started_with(trained: Project, monkeypatch: pytest.MonkeyPatch):
    def run(command: list[str], **_: object) -> object:
        started.append(command)
        return SimpleNamespace(returncode=0, stderr="")

    started: list[list[str]] = []
    monkeypatch.setattr("aggmatch.page.outputs.subprocess", SimpleNamespace(run=run))
    trained.rounds.changes.append(("--set", {"method.name": "mine.py:Mine", "views.weak": "weak"}))
    onnx_file(trained)
    (command,) = started
    allowed = {after for word, after in pairwise(command) if word == "--allow-code"}
    assert allowed == {BACKBONE, "mine.py:Mine"}
