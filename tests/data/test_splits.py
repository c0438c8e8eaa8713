import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aggmatch.data import DataSettings, Images, Split, draw_split, make_split
from aggmatch.data.splits import drawn_settings
from aggmatch.errors import AggMatchError

QUICK = settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
THIRTY = [0, 1, 2] * 10


def same(first: Split, second: Split) -> bool:
    return (first.data, first.classes, first.fold, first.images) == (
        second.data,
        second.classes,
        second.fold,
        second.images,
    ) and all(torch.equal(getattr(first, name), getattr(second, name)) for name in ("labeled", "labels", "unlabeled"))


@pytest.mark.parametrize("values", [{}, {"unlabeled_imbalance": 3, "noise": "symmetric", "noise_rate": 0.5}])
def test_a_split_is_read_back_as_it_was_written(small_data, tmp_path, values):
    data = small_data(THIRTY)
    split = draw_split(data, DataSettings(labels=9, fold=2, **values))
    split.write(tmp_path / "split.json")
    assert same(Split.read(tmp_path / "split.json", data), split)
    assert same(Split.read(tmp_path, data), split)
    assert same(make_split(data, DataSettings(split=str(tmp_path))), split)
    assert [path.name for path in tmp_path.iterdir()] == ["split.json"]


def test_a_split_knows_its_test_images_and_a_reused_split_takes_the_new_ones(small_data, tmp_path):
    data = small_data(THIRTY)
    other = replace(data, test=Images(data.test.pixels ^ 1, data.test.labels))
    split = draw_split(data, DataSettings(labels=9))
    split.write(tmp_path / "split.json")
    assert (split.tested_on(data), split.tested_on(other)) == (True, False)
    assert not Split.read(tmp_path, other).tested_on(other)
    assert make_split(other, DataSettings(split=str(tmp_path))).tested_on(other)
    content = json.loads((tmp_path / "split.json").read_text())
    del content["test_fingerprint"], content["digest"]
    (tmp_path / "split.json").write_text(json.dumps(content))
    assert Split.read(tmp_path, other).tested_on(other), "old files do not know their test images"


def without_digest(path: Path) -> dict[str, Any]:
    """The content of a split file in the form of old versions, which may be edited."""
    return {key: value for key, value in json.loads(path.read_text()).items() if key != "digest"}


@pytest.mark.parametrize("change", [{"labels": [1, 2, 0]}, {"labeled": [2, 1, 0]}, {"fold": 1}, {"unlabeled": [4, 5]}])
def test_an_edited_split_is_used_only_without_its_digest(small_data, tmp_path, change):
    data, path = small_data(THIRTY), tmp_path / "split.json"
    draw_split(data, DataSettings(labels=3)).write(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert f"{path}: it was edited" in read_error(data, path)
    path.write_text(json.dumps(without_digest(path)))
    assert Split.read(path, data).images == 30


def test_a_split_file_implies_number_of_labels_and_fold(small_data, tmp_path):
    path = tmp_path / "split.json"
    draw_split(small_data(THIRTY), DataSettings(labels=9, fold=2)).write(path)
    assert drawn_settings(path) == drawn_settings(tmp_path) == {"data.labels": 9, "data.fold": 2}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"images": "many"}))
    with pytest.raises(AggMatchError, match=r"split\.json: images .*'many'"):
        drawn_settings(path)


def test_all_unlabelled_images_are_written_as_one_word(small_data, tmp_path):
    draw_split(small_data(THIRTY), DataSettings(labels=3)).write(tmp_path / "split.json")
    assert json.loads((tmp_path / "split.json").read_text())["unlabeled"] == "all"


def test_without_a_file_the_split_is_drawn(small_data):
    values = DataSettings(labels=6, fold=4)
    assert same(make_split(small_data(THIRTY), values), draw_split(small_data(THIRTY), values))


def test_a_failed_write_leaves_the_folder_unchanged(small_data, tmp_path):
    split = draw_split(small_data(THIRTY), DataSettings(labels=3))
    (tmp_path / "split.json").mkdir()
    with pytest.raises(AggMatchError, match=r"Cannot write .*split.json: it is a folder\."):
        split.write(tmp_path / "split.json")
    assert [path.name for path in tmp_path.iterdir()] == ["split.json"]
    with pytest.raises(AggMatchError, match=r"Cannot write .*: No such file or directory"):
        split.write(tmp_path / "nowhere/split.json")


def test_a_write_does_not_disturb_a_reader_of_the_old_file(small_data, tmp_path):
    path = tmp_path / "split.json"
    path.write_text("old")
    with path.open() as old:
        draw_split(small_data(THIRTY), DataSettings(labels=3)).write(path)
        assert old.read() == "old"
    assert Split.read(path, small_data(THIRTY)).images == 30


def test_a_full_disk_leaves_the_old_split(small_data, tmp_path):
    resource = pytest.importorskip("resource")
    path = tmp_path / "split.json"
    path.write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, before[1]))
    try:
        with pytest.raises(AggMatchError, match=r"Cannot write .*: File too large"):
            draw_split(small_data(THIRTY), DataSettings(labels=30)).write(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["split.json"]


def read_error(data, path: Path) -> str:
    with pytest.raises(AggMatchError) as error:
        Split.read(path, data)
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": 2}, "its format is 2, but this version of aggmatch reads 1"),
        ({"format": True}, "format must be a whole number, got True"),
        ({"data": "cifar10"}, "its 'data' is 'cifar10', but that of small is 'small'"),
        ({"classes": 10}, "its 'classes' is 10, but that of small is 3"),
        ({"images": 31}, "its 'images' is 31, but that of small is 30"),
        ({"labeled": []}, "'labeled' is empty"),
        ({"labeled": 3}, "labeled must be a list, got 3"),
        ({"labeled": [0, 1, 30]}, "'labeled' must hold whole numbers in [0, 29], got 30"),
        ({"labeled": [0, 1, -1]}, "labeled[2] must be at least 0, got -1"),
        ({"labeled": [0, 1, 1.0]}, "labeled[2] must be a whole number, got 1.0"),
        ({"labeled": [0, 1, True]}, "labeled[2] must be a whole number, got True"),
        ({"labeled": [0, 7, 7]}, "'labeled' names image 7 more than once"),
        ({"labeled": [0, 1]}, "it names 2 labelled images but 3 labels"),
        ({"labels": [0, 1, 3]}, "'labels' must hold whole numbers in [0, 2], got 3"),
        ({"unlabeled": "most"}, "unlabeled must be one of all, got 'most'"),
        ({"unlabeled": [4, 4]}, "'unlabeled' names image 4 more than once"),
        ({"fold": -1}, "fold must be at least 0, got -1"),
        ({"fold": None}, "fold must be a whole number, got None"),
    ],
)
def test_the_error_names_the_wrong_entry_of_a_split_file(small_data, tmp_path, change, problem):
    data, path = small_data(THIRTY), tmp_path / "split.json"
    draw_split(data, DataSettings(labels=3)).write(path)
    path.write_text(json.dumps(without_digest(path) | change))
    message = read_error(data, path)
    assert f"{path}: " in message
    assert problem in message


def test_a_data_set_with_more_images_or_labels_has_changed(small_data, tmp_path):
    path = tmp_path / "split.json"
    draw_split(small_data(THIRTY), DataSettings(labels=3)).write(path)
    for labels in ([*THIRTY, -1], [-1, *THIRTY[1:]]):
        assert "of small have changed since it was drawn" in read_error(small_data(labels), path)


@pytest.mark.parametrize("key", ["format", "data", "classes", "images", "labeled", "labels", "unlabeled", "fold"])
def test_the_error_names_a_missing_entry_of_a_split_file(small_data, tmp_path, key):
    data, path = small_data(THIRTY), tmp_path / "split.json"
    draw_split(data, DataSettings(labels=3)).write(path)
    content = json.loads(path.read_text())
    del content[key]
    path.write_text(json.dumps(content))
    assert f"{path}: it lacks {key}." in read_error(data, path)


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"fold": ' + b"9" * 5000 + b"}"])
def test_a_split_file_that_is_not_json_gives_one_clear_error(small_data, tmp_path, raw):
    path = tmp_path / "split.json"
    path.write_bytes(raw)
    assert read_error(small_data(THIRTY), path).startswith(f"Cannot read {path}: it is not JSON (")


@pytest.mark.parametrize("raw", ["[]", "3", "null", '"text"'])
def test_json_that_is_not_a_table_fails(small_data, tmp_path, raw):
    path = tmp_path / "split.json"
    path.write_text(raw)
    assert f"{path}: it must be a table" in read_error(small_data(THIRTY), path)


def test_a_missing_split_file_gives_one_clear_error(small_data, tmp_path):
    missing = tmp_path / "split.json"
    for path in (missing, tmp_path):
        assert f"{missing}: No such file or directory." in read_error(small_data(THIRTY), path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(
    key=st.sampled_from(["format", "data", "classes", "images", "labeled", "labels", "unlabeled", "fold"]), value=JSON
)
@QUICK
def test_any_value_of_an_entry_is_read_or_gives_an_aggmatch_error(small_data, tmp_path, key, value):
    data, path = small_data(THIRTY), tmp_path / "split.json"
    split = draw_split(data, DataSettings(labels=3))
    split.write(path)
    path.write_text(json.dumps(without_digest(path) | {key: value}))
    try:
        read = Split.read(path, data)
    except AggMatchError:
        return
    assert read.labels.shape == read.labeled.shape == (3,)
    assert 0 <= int(read.unlabeled.min()) <= int(read.unlabeled.max()) < 30
