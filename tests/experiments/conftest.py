"""A table that is small enough to train in a test."""

import json
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import dotted

import aggmatch
from aggmatch.config import Layer
from aggmatch.experiments import reproduce
from aggmatch.experiments.paper import PaperTable, grid, method, on
from aggmatch.experiments.reproduce import Plan
from aggmatch.runs.folder import RunFolder

QUICK = {
    "model.name": "small-4",
    "train.batch": 10,
    "train.unlabeled_ratio": 2,
    "train.log_every": 2,
    "train.evaluate_every": 2,
    "runtime.checkpoint_every": 2,
}
WORDS = [word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture
def tiny() -> PaperTable:
    """Two methods by two numbers of labels, two folds of four steps."""
    return PaperTable(
        "tiny",
        "Digits",
        grid(
            {"10 labels": on("digits", 10), "20 labels": on("digits", 20)},
            {
                "Labels only": (method("supervised"), "60.00±1.50 –"),
                "FixMatch": (method("fixmatch"), "70.00 71.50±2.00"),
            },
        ),
        folds=2,
        steps=4,
    )


@pytest.fixture
def plan(tiny: PaperTable, tmp_path: Path):
    """Plans runs of the tiny table, or of another one, in the test's folder, as if the table asked for quick runs."""

    def make(table: PaperTable = tiny, folds: int | None = None, **changes: object) -> Plan:
        layers = [Layer("the test", dotted(changes))]
        made, quick = (
            reproduce.plan(table, [Layer("quick", QUICK), *more], tmp_path / "runs", folds) for more in (layers, [])
        )
        cells = zip(made.cells, quick.cells, strict=True)
        return Plan(table, tuple(replace(own, protocol=asked.runs[0].settings) for own, asked in cells))

    return make


@pytest.fixture
def follow():
    """Trains a run and records its title."""

    def train(run, title: str) -> None:
        train.titles.append(title)  # type: ignore[attr-defined]
        deque(run.train(), maxlen=0)

    train.titles = []  # type: ignore[attr-defined]
    return train


@pytest.fixture
def words() -> list[str]:
    """Options of the command line that make a run quick."""
    return WORDS


@pytest.fixture
def pretend():
    """Writes a folder that looks like a finished run, or like one that stopped at a step."""

    def make(planned, accuracy: float, step: int | None = None) -> None:
        folder, train = planned.folder, planned.settings.train
        folder.path.mkdir(parents=True)
        folder.write_json(folder.config, planned.settings.to_dict())
        data = planned.settings.data
        split = {"format": 1, "data": data.name, "classes": 10, "fold": data.fold, "images": 1437, "unlabeled": "all"}
        split |= {"labeled": list(range(data.labels)), "labels": [0] * data.labels}
        folder.write_json(folder.split, split)
        done = train.steps if step is None else step
        evaluation = {"accuracy_average": accuracy, "accuracy_online": accuracy - 1}
        records = [{"step": 2, "seconds": 3.0, "loss": 1.0}, {"step": done, "seconds": 7.0, "loss": 1.0} | evaluation]
        folder.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
        folder.checkpoints.mkdir()
        (folder.checkpoints / f"step-{done:08d}-{'0' * 16}.safetensors").touch()
        if step is None:
            by_class = {str(digit): accuracy + digit for digit in range(10)}
            run = {"data": data.name, "labels": data.labels, "fold": data.fold}
            run |= {"method": planned.settings.method_name, "network": train.evaluated, "steps": done, "seconds": 7.0}
            figures = {"accuracy": accuracy, "accuracy_median_of_last_20": accuracy, "class_accuracy": by_class}
            place = {"hardware": "a CPU", "versions": {"aggmatch": "0.1.0"}, "finished": "2026-01-01T00:00:00+00:00"}
            folder.write_json(folder.summary, run | figures | evaluation | place)

    return make


@pytest.fixture
def content():
    """Reads what a run computed and logged from its folder: the bytes of its model, and its log without times."""

    def read(path: Path) -> tuple[bytes, list[dict[str, object]]]:
        folder, times = RunFolder(path), ("seconds", "images_per_second")
        records = [{key: record[key] for key in record if key not in times} for record in folder.records()]
        return folder.model.read_bytes(), records

    return read


@pytest.fixture
def importable(monkeypatch):
    """Lets child processes find the package if it is not installed."""
    monkeypatch.setenv("PYTHONPATH", str(Path(aggmatch.__file__).parents[1]))
