"""Plans, reports and tables of the benchmark."""

import json

import pytest
import torch

from aggmatch.bench import report
from aggmatch.bench.report import Growth, measure_steps, plan, tables
from aggmatch.bench.timing import Effort
from aggmatch.config import Layer
from aggmatch.errors import AggMatchError

EFFORT = Effort(torch.device("cpu"), wanted=2)
LAYERS = [
    Layer("the test", {"data.name": "digits", "model.name": "small-4", "train.batch": 10, "train.unlabeled_ratio": 1})
]


def nothing(_line):
    pass


@pytest.fixture(scope="module")
def measured():
    """A report, read back from JSON."""
    wanted = plan(["supervised", "fixmatch"], LAYERS, [Growth("train.batch", (10, 20))])
    return json.loads(json.dumps(measure_steps(wanted, EFFORT, stages=True, tell=nothing)))


def test_the_report_holds_measurements_and_provenance(measured):
    assert measured.keys() == {
        "format",
        "date",
        "device",
        "hardware",
        "versions",
        "data",
        "images",
        "methods",
        "left_out",
        "growths",
    }
    assert measured["versions"].keys() >= {"aggmatch", "torch", "python"}
    assert [method["method"] for method in measured["methods"]] == ["supervised", "fixmatch"]
    assert measured["methods"][1].keys() == {
        "method",
        "settings",
        "step",
        "captured",
        "images_per_step",
        "images_per_second",
        "steps_per_second",
        "first_step_seconds",
        "peak_memory_bytes",
        "bare",
        "loop_steps_per_second",
        "loop_share_of_bare",
        "eager",
        "eager_over_captured",
        "floor",
        "stages",
    }
    settings = measured["methods"][1]["settings"]
    assert settings["method"]["name"] == "fixmatch"
    assert settings["optim"]["lr"] == 0.03, "the settings of the user, not of the benchmark"
    assert [(point["method"], point["value"]) for point in measured["growths"]] == [
        ("supervised", 10),
        ("supervised", 20),
        ("fixmatch", 10),
        ("fixmatch", 20),
    ]
    assert [point["images_per_step"] for point in measured["growths"]] == [10, 20, 30, 60]


def test_tables_show_the_numbers_of_the_report(measured):
    step, comparison, floor, *stages, growth = tables(measured)
    first, second = measured["methods"]
    assert [row[0] for row in step.rows] == ["supervised", "fixmatch"]
    assert [row[1] for row in step.rows] == [first["step"]["median_ms"], second["step"]["median_ms"]]
    assert "Medians and percentiles of 2 steps." in step.notes
    assert measured["images"] in step.notes
    assert measured["hardware"] in step.title
    assert comparison.columns == ["method", "bare steps/s", "train steps/s", "of bare %"], "no eager step on a CPU"
    assert comparison.rows[1][3] == pytest.approx(100 * comparison.rows[1][2] / comparison.rows[1][1])
    assert floor.rows[0][6] == 100 * first["floor"]["share"]
    assert [table.title for table in stages] == ["Stages of supervised", "Stages of fixmatch"]
    assert stages[1].rows[-1][0] == "other"
    assert sum(row[4] for row in stages[1].rows) == pytest.approx(100)
    assert any("need not add up" in note for note in stages[0].notes)
    assert growth.columns[1] == "train.batch"
    assert [row[4] for row in growth.rows] == pytest.approx(
        [1, growth.rows[1][3] / growth.rows[0][3], 1, growth.rows[3][3] / growth.rows[2][3]]
    )


def test_columns_fit_into_a_terminal(measured):
    assert all(table.width <= 80 for table in tables(measured))


def test_the_eager_step_is_shown_if_it_was_measured(measured):
    method = measured["methods"][0] | {"eager": {"median_ms": 8.0}, "eager_over_captured": 4.0}
    table = report.comparison_table([method])
    assert table.columns[1:3] == ["eager ms", "× captured"]
    assert table.rows[0][1:3] == [8.0, 4.0]


def test_a_method_that_fails_is_left_out_and_a_note_names_it():
    wanted = plan(["supervised", "paws"], [*LAYERS, Layer("the test", {"train.batch": 15})], [])
    found = measure_steps(wanted, EFFORT, stages=False, tell=nothing)
    assert [method["method"] for method in found["methods"]] == ["supervised"]
    assert found["left_out"][0]["method"] == "paws"
    table = next(iter(tables(found)))
    assert any(note.startswith("paws was left out: train.batch must be a multiple of 10") for note in table.notes)


def test_the_error_of_a_single_method_is_raised():
    wanted = plan(["paws"], [*LAYERS, Layer("the test", {"train.batch": 15})], [])
    with pytest.raises(AggMatchError, match=r"train\.batch must be a multiple of 10"):
        measure_steps(wanted, EFFORT, stages=False, tell=nothing)


def test_a_value_too_large_for_the_gpu_keeps_its_row(measured, monkeypatch):
    def too_large(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(report, "measure_method", lambda *_, **__: {})
    monkeypatch.setattr(report, "measure_step", too_large)
    wanted = plan(["supervised"], LAYERS, [Growth("train.batch", (10, 20))])
    (point, _) = measure_steps(wanted, EFFORT, stages=False, tell=nothing)["growths"]
    assert point["reason"] == "It does not fit into the memory of the GPU."
    table = report.growth_table("train.batch", [measured["growths"][0], point | {"value": 10**6}])
    assert table.rows[1] == ["supervised", "1000000", None, None, None, None]
    assert table.notes == ["supervised with train.batch=1000000: It does not fit into the memory of the GPU."]


def test_values_of_grow_are_parsed_like_settings():
    assert Growth.parse("train.batch=32, 64") == Growth("train.batch", (32, 64))
    assert Growth.parse("model.name=wrn-28-2,wrn-28-8").values == ("wrn-28-2", "wrn-28-8")


@pytest.mark.parametrize("text", ["train.batch", "=1,2", "train.batch=", "train.batch=,"])
def test_a_malformed_grow_fails(text):
    with pytest.raises(AggMatchError, match="--grow takes key=value,value"):
        Growth.parse(text)


def test_every_mistake_is_found_before_anything_is_measured():
    with pytest.raises(AggMatchError, match=r"Unknown setting 'train\.batches'"):
        plan(["supervised"], LAYERS, [Growth("train.batches", (1,))])
    with pytest.raises(AggMatchError, match=r"train\.batch must be at least 1, got 0 \(from --grow train\.batch=0\)"):
        plan(["supervised"], LAYERS, [Growth("train.batch", (10, 0))])
    with pytest.raises(AggMatchError, match="Unknown method 'aggmach'"):
        plan(["aggmach"], LAYERS, [])
    with pytest.raises(AggMatchError, match="Unknown data set 'digit'"):
        plan(["supervised"], [Layer("the test", {"data.name": "digit"})], [])
