from pathlib import Path

import pytest

from aggmatch.errors import AggMatchError
from aggmatch.training.log import Log, read_log, scalars


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
    with pytest.raises(AggMatchError, match="line 2 is damaged"):
        read_log(path)
    with pytest.raises(AggMatchError, match="Cannot read .*: No such file"):
        read_log(tmp_path / "missing.jsonl")


def test_lists_become_one_scalar_each():
    assert scalars({"step": 3, "loss": 0.5, "fill": [4, 5]}) == [("loss", 0.5), ("fill/0", 4), ("fill/1", 5)]
