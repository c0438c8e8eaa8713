"""The command `aggmatch bench`, from arguments to tables."""

import json

import pytest

from aggmatch import console

TINY = ["--set", "model.name=small-4", "--set", "train.batch=10", "--set", "train.unlabeled_ratio=1"]


@pytest.fixture
def run(run, monkeypatch):
    """Runs `aggmatch bench` in an empty folder."""
    monkeypatch.setattr(console.stdout, "width", 100)
    return lambda *words: run("bench", *words)


def test_the_command_measures_a_step_prints_tables_and_writes_json(run, tmp_path):
    words = ["digits", "--method", "supervised,uda", "--steps", "2", "--json", "b.json", "--grow", "train.batch=10,20"]
    code, out, err = run(*words, *TINY)
    assert code == 0, err
    assert err.splitlines()[0] == "Measuring supervised on digits ..."
    for word in (
        "A training step on digits",
        "images/s",
        "train steps/s",
        "floor %",
        "Stages of uda",
        "online forward",
    ):
        assert word in out
    assert "As train.batch grows" in out
    assert "Also in b.json" in out
    written = json.loads((tmp_path / "b.json").read_text())
    assert [method["method"] for method in written["methods"]] == ["supervised", "uda"]
    assert f"{written['methods'][1]['step']['median_ms']:.2f}" in out


def test_quiet_prints_no_progress_and_no_stages_times_no_stages(run, tmp_path):
    words = ["digits", "--method", "supervised", "--steps", "1", "--quiet", "--no-stages", "--json", "b.json"]
    code, out, err = run(*words, *TINY)
    assert (code, err) == (0, "")
    assert "supervised" in out
    assert "Measuring" not in out
    assert json.loads((tmp_path / "b.json").read_text())["methods"][0]["stages"] is None


def test_the_option_aggregation_measures_the_aggregation_alone(run, tmp_path):
    code, out, _ = run("--aggregation", "--steps", "1", "--json", "a.json", "--device", "cpu")
    assert code == 0
    assert "Aggregation" in out
    assert "10 classes, 64 slots each in 8 subsets" in out
    (row,) = json.loads((tmp_path / "a.json").read_text())["aggregation"]
    assert row["logarithms"] == 210 * 640 * 10


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["digits", "--method", "aggmach"], "Unknown method 'aggmach'. Did you mean 'aggmatch'?"),
        (["digits", "--method", "fixmatch,"], "Unknown method ''."),
        (["digit"], "Unknown data set 'digit'. Did you mean 'digits'?"),
        (["digits", "--steps", "0"], "--steps must be at least 1, got 0."),
        (["digits", "--grow", "train.bach=1,2"], "Unknown setting 'train.bach'. Did you mean 'train.batch'?"),
        (["digits", "--grow", "train.batch"], "--grow takes key=value,value,..., got 'train.batch'."),
        (["digits", "--grow", "train=1"], "train is a section"),
        (["digits", "--set", "train.batch=0"], "train.batch must be at least 1, got 0"),
        (["digits", "--device", "cuda:99"], "runtime.device is 'cuda:99', but this machine has"),
        (["digits", "--json", "nowhere/b.json"], "Cannot write nowhere/b.json: there is no folder nowhere."),
        (["digits", "--json", "."], "--json must name a file, got the folder ."),
    ],
)
def test_a_mistake_prints_one_line_and_exits_with_2(run, tmp_path, words, message):
    code, out, err = run(*words)
    assert code == 2
    assert out == ""
    assert err.startswith("Error: ")
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
