"""Accuracy within each class."""

from typing import Any

import numpy as np
from tests.folders import write_folder

from aggmatch.report.figure import MANY, Look
from aggmatch.report.figures import draw
from aggmatch.report.figures.predictions import class_order, draw_class_accuracy
from aggmatch.runs.stored import read_runs


def test_pairs_stand_side_by_side_and_of_many_classes_the_worst_are_shown():
    assert class_order(["dog", "frog", "cat"], np.zeros(3), [(2, 0)]) == [2, 0, 1]
    many = [str(number) for number in range(100)]
    assert class_order(many, np.arange(100.0)[::-1], []) == list(range(99, 99 - MANY, -1))


def places(marks: Any) -> list[float]:
    return list(marks.get_xdata())


def test_marks_are_means_over_folds():
    accuracy = {"aggmatch": np.array([[90.0, 70.0], [100.0, 80.0]])}
    (axes,) = draw_class_accuracy(accuracy, {"aggmatch": Look("#2878d0", "-", "s")}, ["a", "b"], [1, 0]).axes
    assert places(axes.lines[0]) == [75, 95]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["b", "a"]


def test_class_accuracy_is_that_of_the_summaries(tmp_path):
    classes = dict.fromkeys("0123456789", 50.0) | {"3": 10.0}
    runs = read_runs([write_folder(tmp_path / "run", summary={"class_accuracy": classes})])
    ((_, panel),) = draw(runs, ["class_accuracy"])
    assert panel.name == "class-accuracy-digits-40-labels"
    (plot,) = panel.plots
    assert places(plot.figure.axes[0].lines[0]) == [50, 50, 50, 10, 50, 50, 50, 50, 50, 50]
    assert "fixmatch (n = 1)" in panel.caption


def test_an_unfinished_run_has_no_class_accuracy(tmp_path):
    assert not list(draw(read_runs([write_folder(tmp_path / "run")]), ["class_accuracy"]))
