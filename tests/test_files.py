from pathlib import Path

import pytest

from aggmatch.errors import AggMatchError
from aggmatch.files import cache_folder, check_writable, make_folder, write_atomically


def test_a_folder_is_created_with_its_parents_and_may_exist(tmp_path: Path):
    assert make_folder(tmp_path / "a/b") == tmp_path / "a/b"
    assert make_folder(tmp_path / "a/b").is_dir()


def test_a_file_in_the_place_of_a_folder_is_an_error(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(AggMatchError, match=r"Cannot write to .*file: File exists.*--out"):
        make_folder(tmp_path / "file")


def test_checking_a_path_leaves_no_files(tmp_path: Path):
    check_writable(tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "page.html").write_text("old")
    check_writable(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == "old"


def test_a_path_that_cannot_be_written_is_an_error(tmp_path: Path):
    with pytest.raises(AggMatchError, match=r"Cannot write .*page\.html: No such file.*--out"):
        check_writable(tmp_path / "nowhere/page.html")


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch):
    path = tmp_path / "page.html"
    write_atomically(path, b"old")

    def fail(file, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(AggMatchError, match=r"Cannot write .*page\.html: No space left"):
        write_atomically(path, b"new")
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"old"]


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
