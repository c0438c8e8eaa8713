"""Reading a run folder, and its default name."""

import json
from pathlib import Path

import pytest
from tests.folders import SUMMARY

from aggmatch.config import Layer
from aggmatch.errors import AggMatchError
from aggmatch.runs.folder import RunFolder, run_name
from aggmatch.settings import resolve

SESSION = {"step": 0, "started": "now", "hardware": "a CPU", "versions": {"torch": "2"}}


def test_a_new_run_has_neither_records_nor_a_result(tmp_path: Path):
    folder = RunFolder(tmp_path)
    assert folder.records() == []
    assert folder.result() is None


def test_records_and_result_are_read_from_their_files(tmp_path: Path):
    folder = RunFolder(tmp_path)
    folder.metrics.write_text('{"step": 1}\n{"step": 2}\n')
    folder.summary.write_text(json.dumps(SUMMARY))
    assert folder.records() == [{"step": 1}, {"step": 2}]
    assert folder.result() == SUMMARY


@pytest.mark.parametrize("content", ["{", json.dumps({"accuracy": 90.0}), json.dumps(SUMMARY | {"accuracy": 101})])
def test_the_error_of_an_invalid_result_names_its_file(tmp_path: Path, content):
    folder = RunFolder(tmp_path)
    folder.summary.write_text(content)
    with pytest.raises(AggMatchError, match=r"Cannot read .*summary\.json"):
        folder.result()


def test_the_name_of_a_run_has_data_labels_method_and_fold():
    chosen = {"data.name": "digits", "data.labels": 20, "data.fold": 2, "method.name": "fixmatch"}
    assert run_name(resolve([Layer("the test", chosen)])) == "digits-20-fixmatch-fold2"


def test_the_last_session_is_read_and_old_folders_have_none(tmp_path: Path):
    folder = RunFolder(tmp_path)
    assert folder.last_session() is None
    for step in (0, 40):
        folder.note_session({"step": step, "started": "now", "hardware": "a CPU", "versions": {"torch": "2"}})
    assert folder.last_session() == {"step": 40, "started": "now", "hardware": "a CPU", "versions": {"torch": "2"}}


@pytest.mark.parametrize("damage", [b'{"step": 50}\n', b'{"st\n', b"[]\n", b"\n"])
def test_a_corrupt_session_is_left_out_with_a_warning(tmp_path: Path, damage: bytes):
    folder = RunFolder(tmp_path)
    folder.note_session(SESSION)
    with folder.sessions.open("ab") as file:
        file.write(damage)
    with pytest.warns(UserWarning, match=r"sessions\.jsonl, line 2 is corrupt"):
        assert folder.last_session() == SESSION


def test_a_session_that_a_kill_cut_short_is_replaced_by_the_next_one(tmp_path: Path):
    folder = RunFolder(tmp_path)
    folder.note_session(SESSION)
    with folder.sessions.open("ab") as file:
        file.write(b'{"step": 40, "sta')
    assert folder.last_session() == SESSION
    folder.note_session(SESSION | {"step": 60})
    assert folder.last_session() == SESSION | {"step": 60}
    assert len(folder.sessions.read_bytes().splitlines()) == 2


def test_the_error_of_an_invalid_configuration_names_its_file(tmp_path: Path):
    folder = RunFolder(tmp_path)
    folder.config.write_text('{"a": 1}')
    with pytest.raises(AggMatchError, match=r"Cannot read .*config\.json: .*'a'"):
        folder.settings()


@pytest.mark.parametrize("data", ["digits", None, 3, ["digits"]])
def test_a_section_that_is_no_table_is_an_error_of_the_configuration(tmp_path: Path, data):
    folder = RunFolder(tmp_path)
    folder.config.write_text(json.dumps({"data": data}))
    with pytest.raises(AggMatchError, match=r"config\.json.*data"):
        folder.settings()


def test_the_error_of_a_wrong_change_names_its_source(tmp_path: Path):
    folder = RunFolder(tmp_path)
    folder.write_json(folder.config, resolve({}).to_dict())
    with pytest.raises(AggMatchError, match=r"^optim\.lr .*\(from --set optim\.lr=-1\)\.$"):
        folder.settings([Layer("--set optim.lr=-1", {"optim.lr": -1})])


def test_the_new_path_of_the_data_is_stored(tmp_path: Path):
    folder = RunFolder(tmp_path)
    config = resolve({"data.labels": 20}).to_dict()
    folder.write_json(folder.config, config)
    folder.note_data("/new/place")
    assert folder.read_config() == config | {"data": {**config["data"], "name": "/new/place"}}


# A new folder ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "left",
    [
        {".split.json.123.part": b""},
        {".split.json.123.part": b"ab"},
        {"split.json": b"split", ".config.json.99.part": b"{", ".lock": b""},
        {"split.json": b"split"},
    ],
)
def test_what_a_kill_left_of_a_new_folder_is_replaced(tmp_path: Path, left: dict[str, bytes]):
    for name, content in left.items():
        (tmp_path / name).write_bytes(content)
    folder = RunFolder(tmp_path)
    folder.create(b"split", {"a": 1})
    assert folder.read_config() == {"a": 1}
    assert {path.name for path in tmp_path.iterdir()} == {"split.json", "config.json", ".lock"}


@pytest.mark.parametrize("left", [{"split.json": b"another"}, {"notes.txt": b""}, {".part": b""}, {"a.1.part": b""}])
def test_a_folder_with_other_content_is_refused_and_unchanged(tmp_path: Path, left: dict[str, bytes]):
    for name, content in left.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(AggMatchError, match="is not empty and holds no run"):
        RunFolder(tmp_path).create(b"split", {"a": 1})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == left


def test_a_second_run_in_the_same_folder_is_refused(tmp_path: Path):
    RunFolder(tmp_path).create(b"split", {"a": 1})
    with pytest.raises(AggMatchError, match="already holds a run"):
        RunFolder(tmp_path).create(b"split", {"a": 1})


def test_a_training_process_deletes_the_parts_that_a_kill_left(tmp_path: Path):
    folder = RunFolder(tmp_path)
    folder.create(b"split", {"a": 1})
    parts = [
        tmp_path / ".model.safetensors.7.part",
        folder.checkpoints / ".step-1.7.part",
        folder.snapshots / ".s.7.part",
    ]
    for part in parts:
        part.parent.mkdir(exist_ok=True)
        part.touch()
    with folder.locked():
        assert [part for part in parts if part.exists()] == []


def test_an_estimate_is_read_as_it_was_written_and_a_changed_one_is_an_error(tmp_path: Path):
    folder = RunFolder(tmp_path)
    assert folder.estimated() is None
    folder.write_estimate({"accuracy": 80.0, "low": 70.0, "high": 90.0})
    found = folder.estimated()
    assert found is not None
    assert found["accuracy"] == 80
    folder.estimate.write_text(folder.estimate.read_text().replace("80.0", "85.0"))
    with pytest.raises(AggMatchError, match=r"estimate\.json"):
        folder.estimated()
