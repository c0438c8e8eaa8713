from pathlib import Path

import pytest

from aggmatch.errors import AggMatchError
from aggmatch.runs.log import Log, read_log, scalars


def test_a_log_is_cut_back_to_a_position_and_a_torn_last_line_is_left_out(tmp_path: Path):
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


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nnonsense\n{"step": 2}\n')
    with pytest.raises(AggMatchError, match="metrics.jsonl, line 2: it is not JSON."):
        read_log(path)
    with pytest.raises(AggMatchError, match="Cannot read .*: No such file"):
        read_log(tmp_path / "missing.jsonl")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"5", "it must be a table, got 5."),
        (b"null", "it must be a table, got None."),
        (b"[]", "it must be a table, got []."),
        (b'"x"', "it must be a table, got 'x'."),
        (b"\xff\xfe", "it is not JSON."),
        (b"[" * 100_000, "it is not JSON."),
        (b'{"loss": 1.0}', "it lacks step."),
        (b'{"step": "2"}', "step must be a whole number, got '2'."),
        (b'{"step": 2, "accuracy_average": null}', "accuracy_average must be a number, got None."),
        (b'{"step": 2, "queue_fill": 5}', "queue_fill must be a list, got 5."),
    ],
)
def test_a_line_that_is_no_record_is_named_also_where_it_is_the_last(tmp_path: Path, line: bytes, message: str):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b"\n")
    with pytest.raises(AggMatchError) as error:
        read_log(path)
    assert str(error.value) == f"Cannot read {path}, line 2: {message}"


def test_values_of_other_names_may_be_anything(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "own": [[true]]}\n')
    assert read_log(path) == [{"step": 1, "own": [[True]]}]


def test_lists_become_one_scalar_each():
    assert scalars({"step": 3, "loss": 0.5, "fill": [4, 5]}) == [("loss", 0.5), ("fill/0", 4), ("fill/1", 5)]


def test_damaged_lines_are_left_out_on_resume_so_that_the_run_can_end(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n#"step": 2}\n{"step": 3}\n{"step": 4}\n')
    with pytest.warns(UserWarning, match="has damaged lines, which are left out: 1 of 3."), Log(path, 36) as log:
        log.write({"step": 5})
    assert [record["step"] for record in read_log(path)] == [1, 3, 5]
