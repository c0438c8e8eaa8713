"""Files and folders are there as a whole or not at all, and what stands in their way is named."""

from pathlib import Path

import pytest

from aggmatch.errors import AggMatchError
from aggmatch.files import check_writable, make_folder


def test_a_folder_is_made_with_all_above_it_and_may_be_there_already(tmp_path: Path):
    assert make_folder(tmp_path / "a/b") == tmp_path / "a/b"
    assert make_folder(tmp_path / "a/b").is_dir()


def test_what_stands_in_the_way_of_a_folder_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(AggMatchError, match=r"Cannot write to .*file: File exists. Choose another --out."):
        make_folder(tmp_path / "file")


def test_a_path_is_tried_without_leaving_a_trace(tmp_path: Path):
    check_writable(tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "page.html").write_text("old")
    check_writable(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == "old"


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path):
    with pytest.raises(AggMatchError, match=r"Cannot write .*: No such file or directory. Choose another --out."):
        check_writable(tmp_path / "nowhere/page.html")
