import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from aggmatch.devices import hardware
from aggmatch.errors import AggMatchError
from aggmatch.runs.results import add_results, curve, find_runs, read_results, result_of

STORED = Path(__file__).parents[2] / "results"


def evaluated(step, accuracy, **more):
    return {"step": step, "accuracy_average": accuracy, "accuracy_online": accuracy - 1, "loss": 1.0} | more


def logged(step, precision):
    return {"step": step, "pseudo_precision": precision, "pseudo_recall": 0.2, "pseudo_coverage": 0.3, "loss": 1.0}


def test_a_trained_run_becomes_a_line_with_all_that_its_result_needs(plan, follow):
    run = plan().runs[4]
    run.complete(follow)
    result = result_of(run.path)
    summary = run.folder.read_json(run.folder.summary)
    assert result.configuration == run.settings.identity()
    assert (result.steps, result.finished) == (4, True)
    assert result.result is not None
    assert result.result["accuracy"] == summary["accuracy"]
    assert result.result["class_accuracy"] == summary["class_accuracy"]
    assert (result.hardware, result.versions) == (summary["hardware"], summary["versions"])
    assert [point["step"] for point in result.curve] == [2, 4]
    assert result.curve[-1]["accuracy_average"] == round(summary["accuracy_average"], 4)
    assert {"pseudo_recall", "pseudo_coverage"} <= set(result.curve[-1])
    assert "runtime" not in json.loads(result.line())["configuration"]


def test_an_unfinished_run_has_a_curve_and_no_result(plan, pretend):
    run = plan().runs[0]
    pretend(run, 50.0, step=3)
    result = result_of(run.path)
    assert (result.steps, result.finished, result.result, result.hardware) == (3, False, None, None)
    assert list(result.curve) == [{"step": 3, "accuracy_average": 50.0, "accuracy_online": 49.0}]


def test_an_unfinished_run_says_what_it_was_last_trained_on(plan):
    run = plan().runs[0]

    def break_off(training, title):
        next(training.train())

    run.complete(break_off)
    run.complete(break_off)
    sessions = [json.loads(line) for line in run.folder.sessions.read_text().splitlines()]
    assert [session["step"] for session in sessions] == [0, 2]
    result = result_of(run.path)
    assert not result.finished
    assert result.hardware == hardware(torch.device("cpu"))
    assert result.versions is not None
    assert result.versions["torch"] == torch.__version__


def test_a_run_that_has_only_begun_is_at_step_zero(plan, pretend):
    run = plan().runs[0]
    pretend(run, 50.0, step=3)
    run.folder.metrics.unlink()
    assert (result_of(run.path).steps, result_of(run.path).curve) == (0, [])


def test_an_evaluation_takes_pseudo_label_values_of_its_own_step_or_the_nearest():
    records = [logged(10, 0.1), evaluated(18, 50.0), logged(20, 0.2), evaluated(30, 60.0) | logged(30, 0.3)]
    assert curve(records) == [
        {"step": 18, "accuracy_average": 50.0, "accuracy_online": 49.0, "pseudo_precision": 0.2}
        | {"pseudo_recall": 0.2, "pseudo_coverage": 0.3},
        {"step": 30, "accuracy_average": 60.0, "accuracy_online": 59.0, "pseudo_precision": 0.3}
        | {"pseudo_recall": 0.2, "pseudo_coverage": 0.3},
    ]


def test_lines_are_read_as_they_were_written(plan, pretend, tmp_path):
    made = plan()
    pretend(made.runs[0], 50.0)
    pretend(made.runs[1], 40.0, step=3)
    results = [result_of(run.path) for run in made.runs[:2]]
    assert add_results(tmp_path / "r.jsonl", results) == 0
    assert read_results(tmp_path / "r.jsonl").results == results


def test_a_run_replaces_its_earlier_line_and_leaves_the_others_as_they_are(plan, pretend, tmp_path):
    made, path = plan(), tmp_path / "r.jsonl"
    pretend(made.runs[0], 50.0)
    first = result_of(made.runs[0].path)
    odd = json.dumps({"method": "fixmatch", "accuracy": 43.28})
    path.write_text(f"{odd}\n\n{first.line()}\n")
    pretend(made.runs[1], 40.0)
    summary = made.runs[0].folder.read_json(made.runs[0].folder.summary)
    made.runs[0].folder.write_json(made.runs[0].folder.summary, summary | {"accuracy": 55.0})
    assert add_results(path, [result_of(run.path) for run in made.runs[:2]]) == 1
    assert path.read_text().splitlines()[0] == odd
    stored = read_results(path)
    assert [result.result["accuracy"] for result in stored.results if result.result] == [55.0, 40.0]
    assert stored.others == 1


def test_a_run_replaces_its_line_from_before_a_setting_existed(plan, pretend, tmp_path):
    made, path = plan(), tmp_path / "r.jsonl"
    pretend(made.runs[0], 50.0)
    result = result_of(made.runs[0].path)
    data = {name: value for name, value in result.configuration["data"].items() if name != "side"}
    path.write_text(replace(result, configuration={**result.configuration, "data": data}).line() + "\n")
    assert add_results(path, [result]) == 1
    assert read_results(path).results == [result]


def test_of_a_configuration_that_this_version_cannot_run_the_words_decide(plan, pretend, tmp_path):
    made, path = plan(), tmp_path / "r.jsonl"
    pretend(made.runs[0], 50.0)
    result = result_of(made.runs[0].path)
    unknown = replace(result, configuration={**result.configuration, "method": {"name": "nonsense"}})
    assert add_results(path, [unknown]) == 0
    assert add_results(path, [unknown, result]) == 1
    assert len(read_results(path).results) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"configuration": ', "it is not JSON."),
        ('{"configuration": {}, "steps": 1, "finished": true, "result": null}', "it lacks curve, hardware, versions."),
    ],
)
def test_a_damaged_file_is_named_and_left_alone(tmp_path, content, message):
    path = tmp_path / "r.jsonl"
    path.write_text(content)
    for attempt in (lambda: read_results(path), lambda: add_results(path, [])):
        with pytest.raises(AggMatchError, match=f"Cannot read .*r.jsonl, line 1: {message}"):
            attempt()
    assert path.read_text() == content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"result": 5}, "result must be a table, got 5."),
        ({"result": {}}, "result lacks accuracy."),
        ({"result": {"accuracy": "x"}}, "result.accuracy must be a number, got 'x'."),
        ({"result": {"accuracy": float("nan")}}, "result.accuracy must be a finite number, got nan."),
        ({"result": {"accuracy": 1, "class_accuracy": 7}}, "result.class_accuracy must be a table, got 7."),
        ({"curve": 5}, "curve must be a list, got 5."),
        ({"curve": [{}]}, "curve[0] lacks accuracy_average, accuracy_online, step."),
        ({"steps": "many"}, "steps must be a whole number, got 'many'."),
        ({"finished": 1}, "finished must be true or false, got 1."),
        ({"hardware": 5}, "hardware must be a string, got 5."),
        ({"versions": []}, "versions must be a table, got []."),
    ],
)
def test_a_damaged_entry_of_a_line_is_named(plan, pretend, tmp_path, change, message):
    run, path = plan().runs[0], tmp_path / "r.jsonl"
    pretend(run, 50.0)
    line = result_of(run.path).line()
    path.write_text(f"{line}\n{json.dumps(json.loads(line) | change)}\n")
    with pytest.raises(AggMatchError) as error:
        read_results(path)
    assert str(error.value) == f"Cannot read {path}, line 2: {message}"


def test_an_incomplete_summary_is_named(plan, pretend):
    run = plan().runs[0]
    pretend(run, 50.0)
    run.folder.write_json(run.folder.summary, {"accuracy": 3})
    with pytest.raises(AggMatchError, match="Cannot read .*summary.json: it lacks accuracy_average, "):
        result_of(run.path)


def test_an_evaluation_of_one_network_alone_is_no_point_of_the_curve():
    assert curve([{"step": 1, "accuracy_average": 50.0}]) == []


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(AggMatchError, match="Cannot read .*nowhere.jsonl: No such file or directory."):
        read_results(tmp_path / "nowhere.jsonl")


def test_runs_are_found_by_their_folder_or_a_folder_above_it(plan, pretend, tmp_path):
    runs = plan().runs[:3]
    for run in runs:
        pretend(run, 50.0)
    paths = sorted(run.path for run in runs)
    assert find_runs([tmp_path]) == paths
    assert find_runs([runs[2].path, tmp_path / "runs"])[0] == runs[2].path
    assert len(find_runs([runs[2].path, tmp_path / "runs"])) == 3
    with pytest.raises(AggMatchError, match="empty holds no run"):
        find_runs([tmp_path / "empty"])


@pytest.mark.parametrize("path", sorted(STORED.glob("*.jsonl")), ids=lambda path: path.name)
def test_stored_results_can_be_read(path):
    stored = read_results(path)
    assert stored.results
    for result in stored.results:
        assert result.finished == (result.result is not None)
        assert not result.finished or result.steps == result.configuration["train"]["steps"]
