"""Files and folders are there as a whole or not at all, and what stands in their way is named."""

from pathlib import Path

import pytest

from aggmatch.errors import AggMatchError
from aggmatch.files import make_folder


def test_a_folder_is_made_with_all_above_it_and_may_be_there_already(tmp_path: Path):
    assert make_folder(tmp_path / "a/b") == tmp_path / "a/b"
    assert make_folder(tmp_path / "a/b").is_dir()


def test_what_stands_in_the_way_of_a_folder_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(AggMatchError, match=r"Cannot write to .*file: File exists. Choose another --out."):
        make_folder(tmp_path / "file")
