import os
import subprocess
import sys
from pathlib import Path

import pytest

from aggmatch.errors import AggMatchError
from aggmatch.storage.files import (
    cache_folder,
    check_writable,
    is_intact,
    make_folder,
    part_of,
    remove_parts,
    sealed,
    write_atomically,
    write_output,
)


@pytest.fixture
def dead() -> int:
    """The number of a process that no longer exists."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_is_created_with_its_parents_and_may_exist(tmp_path: Path):
    assert make_folder(tmp_path / "a/b") == tmp_path / "a/b"
    assert make_folder(tmp_path / "a/b").is_dir()


def test_a_file_in_the_place_of_a_folder_is_an_error(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(AggMatchError, match=r"Cannot write to .*file: File exists.*another place"):
        make_folder(tmp_path / "file")


@pytest.mark.parametrize("place", ["page.html", "new/folder/page.html"])
def test_checking_a_path_leaves_no_files_and_no_folders(tmp_path: Path, place: str):
    check_writable(tmp_path / place)
    assert list(tmp_path.iterdir()) == []
    write_output(tmp_path / place, b"old")
    check_writable(tmp_path / place)
    assert (tmp_path / place).read_bytes() == b"old"
    assert [path.name for path in (tmp_path / place).parent.iterdir()] == ["page.html"]


@pytest.mark.parametrize(("place", "why"), [("file/page.html", "Not a directory"), ("a" * 300, "File name too long")])
def test_a_path_that_cannot_be_written_is_an_error(tmp_path: Path, place: str, why: str):
    (tmp_path / "file").touch()
    with pytest.raises(AggMatchError, match=rf"Cannot write .*{place}: {why}.*another place"):
        check_writable(tmp_path / place)


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch):
    path = tmp_path / "page.html"
    write_atomically(path, b"old")

    def fail(file, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(AggMatchError, match=r"Cannot write .*page\.html: No space left.*Its old content is unchanged"):
        write_atomically(path, b"new")
    assert content(tmp_path) == {"page.html": b"old"}
    with pytest.raises(AggMatchError, match=r"Cannot write .*other\.html: No space left on device\.$"):
        write_atomically(tmp_path / "other.html", b"new")


def test_the_cache_folder_is_the_chosen_one_or_the_users_own(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/somewhere")
    assert cache_folder() == Path("/var/somewhere/aggmatch")
    assert cache_folder("~/mine") == tmp_path / "mine"
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_folder() == tmp_path / ".cache/aggmatch"
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_folder() == tmp_path / "Library/Caches/aggmatch"


# What is not replaced -------------------------------------------------------------------------------------------------


def make_link(path: Path) -> None:
    path.with_name("target").write_text("mine")
    path.symlink_to("target")


SPECIAL = {
    "a link": make_link,
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a FIFO": os.mkfifo,
    "a folder": os.mkdir,
}


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("write", [check_writable, lambda path: write_output(path, b"new")])
def test_only_regular_files_are_replaced(tmp_path: Path, kind, write):
    path = tmp_path / "out.csv"
    SPECIAL[kind](path)
    before = path.lstat()
    with pytest.raises(AggMatchError, match=r"Cannot write .*out\.csv: it is "):
        write(path)
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert not (tmp_path / "target").exists() or (tmp_path / "target").read_text() == "mine"
    assert {entry.name for entry in tmp_path.iterdir()} <= {"out.csv", "target"}


def test_a_device_is_not_replaced():
    with pytest.raises(AggMatchError, match="/dev/full: it is not a regular file"):
        check_writable(Path("/dev/full"))


# Parts ----------------------------------------------------------------------------------------------------------------


def test_a_write_deletes_the_parts_of_dead_processes_only(tmp_path: Path, dead: int):
    kept = {f".page.html.{os.getppid()}.part": b"of a live process", f".other.{dead}.part": b"", ".page.html": b""}
    for name, data in {**kept, f".page.html.{dead}.part": b"torn"}.items():
        (tmp_path / name).write_bytes(data)
    write_atomically(tmp_path / "page.html", b"new")
    assert content(tmp_path) == {**kept, "page.html": b"new"}


def test_all_parts_of_a_folder_can_be_deleted(tmp_path: Path):
    for path in (tmp_path / "a", tmp_path / "b"):
        part_of(path).touch()
        path.touch()
    remove_parts(tmp_path, tmp_path / "missing")
    assert content(tmp_path).keys() == {"a", "b"}


# Digests --------------------------------------------------------------------------------------------------------------


def test_sealed_values_are_intact_until_one_changes():
    values = sealed({"a": 1, "b": [2.5, "ü"], "free": 0}, without=["free"])
    assert is_intact(values, ["free"])
    assert is_intact(dict(reversed(values.items())) | {"free": 1}, ["free"])
    assert not is_intact(values | {"a": 2}, ["free"])
    assert not is_intact(values | {"new": 2}, ["free"])
    assert is_intact({"a": 1}), "an old file without a digest"
