import os
from pathlib import Path

import pytest

from aggmatch.errors import AggMatchError
from aggmatch.runs.folder import read_log
from aggmatch.runs.log import Log, scalars


def test_a_log_is_cut_back_to_a_position_and_an_incomplete_last_line_is_left_out(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    with Log(path) as log:
        log.write({"step": 1})
        position = log.position
        log.write({"step": 2})
    with path.open("ab") as file:
        file.write(b'{"step": 3, "lo')
    assert read_log(path) == [{"step": 1}, {"step": 2}]
    with Log(path, position) as log:
        log.write({"step": 7})
    assert read_log(path) == [{"step": 1}, {"step": 7}]


def test_the_error_of_a_corrupt_line_names_file_and_line(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nnonsense\n{"step": 2}\n')
    with pytest.raises(AggMatchError, match=r"metrics\.jsonl, line 2"):
        read_log(path)
    with pytest.raises(AggMatchError, match=r"missing\.jsonl: No such file"):
        read_log(tmp_path / "missing.jsonl")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"5", "got 5"),
        (b"null", "got None"),
        (b"[]", "got []"),
        (b'"x"', "got 'x'"),
        (b"", "JSON"),
        (b"\xff\xfe", "JSON"),
        (b"[" * 100_000, "JSON"),
        (b'{"loss": 1.0}', "step"),
        (b'{"step": "2"}', "step must be"),
        (b'{"step": 2, "accuracy_average": null}', "accuracy_average must be"),
        (b'{"step": 2, "queue_fill": 5}', "queue_fill must be"),
    ],
)
def test_the_last_complete_line_must_be_a_record(tmp_path: Path, line: bytes, problem: str):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b"\n")
    with pytest.raises(AggMatchError) as error:
        read_log(path)
    assert str(error.value).startswith(f"Cannot read {path}, line 2: ")
    assert problem in str(error.value)


def test_values_with_other_names_may_have_any_type(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "own": [[true]]}\n')
    assert read_log(path) == [{"step": 1, "own": [[True]]}]


def test_each_item_of_a_list_becomes_a_scalar():
    assert scalars({"step": 3, "loss": 0.5, "fill": [4, 5]}) == [("loss", 0.5), ("fill/0", 4), ("fill/1", 5)]


def test_corrupt_lines_are_dropped_on_resume_so_that_the_run_can_finish(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n#"step": 2}\n{"step": 3}\n{"step": 4}\n')
    with pytest.warns(UserWarning, match=r"metrics\.jsonl has corrupt lines.* 1 of 3"), Log(path, 36) as log:
        log.write({"step": 5})
    assert [record["step"] for record in read_log(path)] == [1, 3, 5]


@pytest.mark.parametrize(("end", "steps"), [('{"step": 2}', [1, 2]), ('{"step": 2', [1]), ("", [1]), ('{"lo', [1])])
def test_a_last_line_without_a_newline_counts_only_if_it_is_complete(tmp_path: Path, end: str, steps: list[int]):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + end)
    assert [record["step"] for record in read_log(path)] == steps


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_a_failed_write_is_one_clear_error(tmp_path: Path):
    sentence = r"Cannot write .*metrics\.jsonl: No space left on device\. Checkpoints are unchanged\."
    log = Log(tmp_path / "metrics.jsonl")
    with Path("/dev/full").open("wb") as full:
        os.dup2(full.fileno(), log.file.fileno())
    with pytest.raises(AggMatchError, match=sentence), log:
        log.write({"step": 1})


def test_a_line_whose_checksum_does_not_match_is_an_error(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    with Log(path) as log:
        log.write({"step": 1, "loss": 1.5})
        log.write({"step": 2, "loss": 0.5})
    path.write_bytes(path.read_bytes().replace(b"1.5", b"1.4"))
    with pytest.raises(AggMatchError, match=r"metrics\.jsonl, line 1: it is corrupt"):
        read_log(path)
    with pytest.warns(UserWarning, match=r"corrupt lines, which are dropped: 1 of 2"), Log(path, path.stat().st_size):
        assert [record["step"] for record in read_log(path)] == [2]


def test_a_line_whose_checksum_lost_its_name_is_an_error(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    with Log(path) as log:
        log.write({"step": 1})
    path.write_bytes(path.read_bytes().replace(b"crc32", b"crc72"))
    with pytest.raises(AggMatchError, match=r"metrics\.jsonl, line 1.*checksum"):
        read_log(path)


def test_a_resumed_log_whose_end_is_unreadable_is_reported(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    with Log(path) as log:
        log.write({"step": 1})
        log.write({"step": 2})
        position = log.position
    path.write_bytes(path.read_bytes()[:-9] + b"x" * 9)
    with pytest.warns(UserWarning, match="corrupt lines.* 1 of 2"), Log(path, position):
        pass
    assert read_log(path) == [{"step": 1}]
