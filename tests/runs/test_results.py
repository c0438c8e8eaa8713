"""Results files, and what a line of them keeps of a run."""

import json
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.folders import line, write_folder

from aggmatch.devices import hardware
from aggmatch.errors import AggMatchError
from aggmatch.runs.results import add_results, decode, encode, read_results
from aggmatch.runs.stored import read_run
from aggmatch.settings import resolve
from aggmatch.training.begin import resume, start

STORED = Path(__file__).parents[2] / "results"
EVALUATED = {"accuracy_average": 50.0, "accuracy_online": 49.0}
QUICK = {"model.name": "small-4", "train.steps": 4, "train.batch": 10, "train.unlabeled_ratio": 2}
QUICK |= {"train.log_every": 2, "train.evaluate_every": 2, "runtime.checkpoint_every": 2}


@pytest.fixture
def finished(tmp_path):
    """A finished run, read from its folder."""
    return read_run(write_folder(tmp_path / "finished", [line(1000, **EVALUATED)], {}))


@pytest.fixture
def unfinished(tmp_path):
    """A run that stopped at step 300, read from its folder."""
    return read_run(write_folder(tmp_path / "unfinished", [line(300, **EVALUATED)], data__fold=1))


def test_the_line_of_a_trained_run_has_all_that_its_result_needs(tmp_path):
    settings = resolve(QUICK | {"method.name": "fixmatch"})
    deque(start(settings, tmp_path / "run").train(), maxlen=0)
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    content = json.loads(encode(read_run(tmp_path / "run")))
    assert content["configuration"] == json.loads(json.dumps(settings.identity()))
    assert (content["steps"], content["finished"]) == (4, True)
    assert content["result"]["accuracy"] == summary["accuracy"]
    assert content["result"]["class_accuracy"] == summary["class_accuracy"]
    assert (content["hardware"], content["versions"]) == (summary["hardware"], summary["versions"])
    assert [point["step"] for point in content["curve"]] == [2, 4]
    assert content["curve"][-1]["accuracy_average"] == round(summary["accuracy_average"], 4)
    assert {"pseudo_recall", "pseudo_coverage"} <= set(content["curve"][-1])
    assert "runtime" not in content["configuration"]


def test_the_line_of_an_unfinished_run_has_a_curve_and_no_result(unfinished):
    content = json.loads(encode(unfinished))
    assert (content["steps"], content["finished"], content["result"], content["hardware"]) == (300, False, None, None)
    assert content["curve"] == [{"step": 300, **EVALUATED, "seconds": 30.0}]


def test_an_unfinished_run_knows_the_hardware_of_its_last_process(tmp_path):
    next(start(resolve(QUICK), tmp_path / "run").train())
    next(resume(tmp_path / "run").train())
    sessions = [json.loads(text) for text in (tmp_path / "run/sessions.jsonl").read_text().splitlines()]
    assert [session["step"] for session in sessions] == [0, 2]
    run = read_run(tmp_path / "run")
    assert not run.finished
    assert run.hardware == hardware(torch.device("cpu"), 1)
    assert run.versions is not None
    assert run.versions["torch"] == torch.__version__


def test_lines_are_read_as_they_were_written(finished, unfinished, tmp_path):
    path = tmp_path / "r.jsonl"
    assert add_results(path, [finished, unfinished]) == 0
    for before, stored in zip([finished, unfinished], read_results(path), strict=True):
        run = stored.run
        assert run is not None
        assert stored.key == run.key == before.key
        assert encode(run) == stored.text == encode(before)
        assert (run.accuracy, run.length, run.median) == (before.accuracy, before.length, before.median)
        assert run.class_accuracy == before.class_accuracy


def test_a_run_replaces_its_earlier_line_and_leaves_the_others_as_they_are(finished, unfinished, tmp_path):
    path = tmp_path / "r.jsonl"
    odd = json.dumps({"method": "fixmatch", "accuracy": 43.28})
    path.write_text(f"{odd}\n\n{encode(finished)}\n")
    better = replace(finished, summary={**(finished.summary or {}), "accuracy": 55.0})
    assert add_results(path, [better, unfinished]) == 1
    assert path.read_text().splitlines()[0] == odd
    first, *others = read_results(path)
    assert (first.key, first.run, bool(first.problem)) == (None, None, True)
    assert [stored.run.accuracy for stored in others if stored.run] == [55.0, 50.0]


def without(text, section, name):
    """A line without one setting of its configuration."""
    content = json.loads(text)
    del content["configuration"][section][name]
    return json.dumps(content)


def test_a_run_replaces_its_line_from_before_a_setting_existed(finished, tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text(without(encode(finished), "data", "side") + "\n")
    assert add_results(path, [finished]) == 1
    assert path.read_text() == encode(finished) + "\n"


def test_a_line_from_before_a_setting_existed_has_the_default(finished):
    run = decode(without(encode(finished), "train", "evaluated"), "it").run
    assert run is not None
    assert run.settings.identity() == finished.settings.identity()
    assert run.accuracy == finished.accuracy


def test_a_line_that_this_version_cannot_run_has_a_reason_and_stays_in_its_file(finished, tmp_path):
    path = tmp_path / "r.jsonl"
    text = encode(finished).replace('"fixmatch"', '"nonsense"')
    path.write_text(text + "\n")
    (stored,) = read_results(path)
    assert stored.run is None
    assert "nonsense" in stored.problem
    assert add_results(path, [finished]) == 0
    assert path.read_text() == f"{text}\n{encode(finished)}\n"


def test_a_line_that_names_code_is_read_only_if_the_code_is_allowed(finished, tmp_path):
    (tmp_path / "mine.py").write_text("from aggmatch.methods.fixmatch import FixMatch\n\nMine = FixMatch\n")
    name = f"{tmp_path / 'mine.py'}:Mine"
    text = encode(finished).replace('"fixmatch"', json.dumps(name))
    refused = decode(text, "it")
    assert refused.run is None
    assert f"--allow-code {name}" in refused.problem
    allowed = decode(text, "it", [name])
    assert allowed.run is not None
    assert allowed.run.method == "mine.Mine"
    assert refused.key == allowed.key


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"configuration": ', "JSON"),
        ('{"configuration": {}, "steps": 1, "finished": true, "result": null}', "curve, hardware, versions"),
    ],
)
def test_a_corrupt_file_is_named_and_left_alone(tmp_path, content, message):
    path = tmp_path / "r.jsonl"
    path.write_text(content)
    for attempt in (lambda: read_results(path), lambda: add_results(path, [])):
        with pytest.raises(AggMatchError, match=rf"r\.jsonl, line 1: .*{message}"):
            attempt()
    assert path.read_text() == content


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"result": 5}, "result"),
        ({"result": {}}, "result lacks accuracy"),
        ({"result": {"accuracy": "x"}}, r"result\.accuracy"),
        ({"result": {"accuracy": float("nan")}}, r"result\.accuracy"),
        ({"result": {"accuracy": 1, "class_accuracy": 7}}, r"result\.class_accuracy"),
        ({"curve": 5}, "curve"),
        ({"curve": [{}]}, r"curve\[0\] lacks accuracy_average, accuracy_online, step"),
        ({"steps": "many"}, "steps"),
        ({"finished": 1}, "finished"),
        ({"hardware": 5}, "hardware"),
        ({"versions": []}, "versions"),
    ],
)
def test_a_corrupt_entry_of_a_line_is_named(finished, tmp_path, change, key):
    path = tmp_path / "r.jsonl"
    text = encode(finished)
    path.write_text(f"{text}\n{json.dumps(json.loads(text) | change)}\n")
    with pytest.raises(AggMatchError, match=rf"r\.jsonl, line 2: {key}"):
        read_results(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(AggMatchError, match=r"nowhere\.jsonl"):
        read_results(tmp_path / "nowhere.jsonl")


@pytest.mark.parametrize("path", sorted(STORED.glob("*.jsonl")), ids=lambda path: path.name)
def test_the_stored_results_can_be_read(path):
    runs = [stored.run for stored in read_results(path) if stored.key is not None]
    assert runs
    for run in runs:
        assert run is not None
        assert not run.finished or run.steps == run.settings.train.steps
