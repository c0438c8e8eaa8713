"""The demo: its runs, its table and its report."""

import json
import sys
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest
from sklearn.neighbors import KNeighborsClassifier

from aggmatch.data import DataSettings, draw_split, load
from aggmatch.experiments import demo
from aggmatch.experiments.demo import Outcome, label_spreading
from aggmatch.experiments.planned import PlannedRun

QUICK = {"train.steps": 4, "model.name": "small-4", "train.batch": 10, "train.unlabeled_ratio": 1}


@pytest.fixture
def quick(monkeypatch):
    """A demo whose runs take a second each."""
    monkeypatch.setattr(demo, "CHOSEN", demo.CHOSEN | QUICK)


def train_here(runs):
    for run in runs:
        run.complete(lambda training, title: deque(training.train(), maxlen=0).clear())


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, Outcome]:
    """A finished demo: its folder and its outcome."""
    out = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "CHOSEN", demo.CHOSEN | QUICK)
        return out, demo.run(out, 0, train_here)


def test_the_demo_trains_three_methods_and_compares_them_with_label_spreading(trained):
    out, outcome = trained
    rows = outcome.table().rows
    assert [row[0] for row in rows] == ["supervised", "LabelSpreading (scikit-learn)", "fixmatch", "aggmatch"]
    assert [row[1] for row in rows] == ["paper", None, "paper", "neighbours"]
    assert all(0 <= row[2] <= 100 for row in rows)
    assert rows[0][3] is None
    assert [run.method for run in outcome.runs] == list(demo.METHODS)
    assert all((out / method / "summary.json").exists() for method in demo.METHODS)


def test_every_run_computes_with_one_thread_and_the_slowest_starts_first(tmp_path: Path, quick):
    planned: list[PlannedRun] = []

    def record_and_stop(runs):
        planned.extend(runs)
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        demo.run(tmp_path, 0, record_and_stop)
    assert {(run.settings.runtime.device, run.settings.runtime.threads) for run in planned} == {("cpu", 1)}
    assert [run.settings.method_name for run in planned] == ["aggmatch", "fixmatch", "supervised"]


def test_label_spreading_uses_the_ten_labels_and_beats_the_nearest_labelled_image():
    settings = DataSettings(labels=10)
    data = load("digits")
    split = draw_split(data, settings)
    accuracy, _ = label_spreading(settings)
    labeled = data.train.pixels[split.labeled].flatten(1).numpy()
    nearest = KNeighborsClassifier(1).fit(labeled, split.labels.numpy())
    floor = 100 * nearest.score(data.test.pixels.flatten(1).numpy(), data.test.labels.numpy())
    assert accuracy > floor
    assert accuracy == pytest.approx(label_spreading(settings)[0])


# The command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def report(monkeypatch):
    """Replaces the function that makes the report."""

    def replace(page):
        monkeypatch.setitem(sys.modules, "aggmatch.report.page", SimpleNamespace(page=page))

    return replace


def test_the_command_ends_with_a_report_of_its_runs(run, quick, trained, report):
    out, outcome = trained
    shown: dict[str, object] = {}

    def page(runs, others):
        shown.update(methods=[run.method for run in runs], others=others)
        return "the page"

    report(page)
    code, printed, _ = run("demo", "--out", out)
    assert code == 0
    assert "aggmatch" in printed
    assert f"Report: {out}/report.html" in printed
    assert (out / "report.html").read_text() == "the page"
    assert shown == {"methods": list(demo.METHODS), "others": [(demo.RIVAL, outcome.rival_accuracy)]}


def test_the_command_does_not_fail_if_the_report_does(run, quick, trained, report):
    def page(*_, **__):
        raise ValueError("no ink")

    report(page)
    code, printed, err = run("demo", "--out", trained[0])
    assert code == 0
    assert "aggmatch" in printed
    assert "no ink" in err


def test_the_command_trains_in_other_processes_and_shows_them(run, tmp_path, quick, report, importable):
    report(lambda *_, **__: "the page")
    code, printed, _ = run("demo", "--out", "d")
    assert code == 0
    for method in demo.METHODS:
        assert f"{method}  started" in printed
        assert f"{method}  step 4/4" in printed
        assert json.loads((tmp_path / "d" / method / "summary.json").read_text())["hardware"].endswith("1 thread")
