"""What is read from the folder of a run, and what it is called."""

import json
from pathlib import Path

import pytest
from tests.folders import SUMMARY

from aggmatch.config import Layer
from aggmatch.errors import AggMatchError
from aggmatch.runs.folder import RunFolder, run_name
from aggmatch.settings import resolve


def test_a_run_that_has_just_begun_has_neither_records_nor_a_result(tmp_path: Path):
    folder = RunFolder(tmp_path)
    assert folder.records() == []
    assert folder.result() is None


def test_records_and_result_are_those_of_the_files(tmp_path: Path):
    folder = RunFolder(tmp_path)
    folder.metrics.write_text('{"step": 1}\n{"step": 2}\n')
    folder.summary.write_text(json.dumps(SUMMARY))
    assert folder.records() == [{"step": 1}, {"step": 2}]
    assert folder.result() == SUMMARY


@pytest.mark.parametrize("damaged", ["{", json.dumps({"accuracy": 90.0}), json.dumps(SUMMARY | {"accuracy": 101})])
def test_a_damaged_result_is_named(tmp_path: Path, damaged):
    folder = RunFolder(tmp_path)
    folder.summary.write_text(damaged)
    with pytest.raises(AggMatchError, match="Cannot read .*summary.json"):
        folder.result()


def test_a_run_is_called_after_its_data_labels_method_and_fold():
    chosen = {"data.name": "digits", "data.labels": 20, "data.fold": 2, "method.name": "fixmatch"}
    assert run_name(resolve([Layer("the test", chosen)])) == "digits-20-fixmatch-fold2"


def test_the_last_of_several_sessions_is_read_and_older_folders_have_none(tmp_path: Path):
    folder = RunFolder(tmp_path)
    assert folder.last_session() is None
    for step in (0, 40):
        folder.note_session({"step": step, "started": "now", "hardware": "a CPU", "versions": {"torch": "2"}})
    assert folder.last_session() == {"step": 40, "started": "now", "hardware": "a CPU", "versions": {"torch": "2"}}
    with folder.sessions.open("a") as file:
        file.write('{"step": 50}\n')
    with pytest.raises(AggMatchError, match=r"Cannot read .*sessions.jsonl: it lacks hardware, started, versions\."):
        folder.last_session()


def test_a_configuration_that_is_none_is_named(tmp_path: Path):
    folder = RunFolder(tmp_path)
    folder.config.write_text('{"a": 1}')
    with pytest.raises(AggMatchError, match=r"Cannot read .*config.json: Unknown setting 'a'"):
        folder.settings()


def test_a_wrong_change_is_blamed_on_its_own_source(tmp_path: Path):
    folder = RunFolder(tmp_path)
    folder.write_json(folder.config, resolve({}).to_dict())
    with pytest.raises(AggMatchError, match=r"^optim.lr must be above 0, got -1.0 \(from --set optim.lr=-1\)\.$"):
        folder.settings([Layer("--set optim.lr=-1", {"optim.lr": -1})])
