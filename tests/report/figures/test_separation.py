"""The weight of pseudo labels: AUC and precision by weight, and the share of each class."""

from pathlib import Path
from typing import Any

import pytest
from tests.folders import line, write_folder

from aggmatch.report.figure import Panel
from aggmatch.report.figures import draw
from aggmatch.runs.stored import read_runs

NAMES = ["separation", "class_shares"]
TENTHS = [n / 10 for n in range(10)]
SHARES = [0.55, *[0.05] * 9]


def panels(*folders: Path) -> dict[str, Panel]:
    return {panel.name: panel for _, panel in draw(read_runs(folders), NAMES)}


def heights(drawn: Any) -> list[float]:
    return list(drawn.get_ydata())


def logged(step: int, auc: float, precisions: list[float] = TENTHS, **values: Any) -> dict[str, Any]:
    return line(step, pseudo_auc=auc, pseudo_precision_by_weight=precisions, pseudo_class_share=SHARES, **values)


def test_the_auc_is_drawn_over_the_steps_with_a_line_at_chance(tmp_path):
    shown = panels(write_folder(tmp_path / "a", [logged(10, 0.6), logged(20, 0.9)]))["separation"]
    axes = shown.plots[0].figure.axes[0]
    curve, chance = (heights(drawn) for drawn in axes.lines)
    assert curve == [0.6, 0.9]
    assert set(chance) == {0.5}
    assert axes.get_ylim()[0] < 0.5


def test_precision_by_weight_is_the_mean_over_the_last_tenth_of_the_log(tmp_path):
    records = [logged(step, 0.6, [step / 100] * 10) for step in range(1, 21)]
    shown = panels(write_folder(tmp_path / "a", records))["separation"]
    assert [plot.name for plot in shown.plots] == ["auc", "tenths-beginning", "tenths-end"]
    (beginning,), (end,) = (plot.figure.axes[0].lines for plot in shown.plots[1:])
    assert heights(beginning) == pytest.approx([1.5] * 10)
    assert heights(end) == pytest.approx([19.5] * 10)


def test_the_beginning_is_where_pseudo_labels_have_weight(tmp_path):
    for last_without, first in ((7, 8.5), (10, 11.5), (18, None)):
        records = [
            logged(step, 0.6, [step / 100] * 10, pseudo_coverage=float(step > last_without)) for step in range(1, 21)
        ]
        folder = write_folder(tmp_path / str(last_without), records)
        shown = {plot.name: plot.figure for plot in panels(folder)["separation"].plots}
        if first is None:
            assert "tenths-beginning" not in shown, "it would overlap with the end"
        else:
            assert heights(shown["tenths-beginning"].axes[0].lines[0]) == pytest.approx([first] * 10)


def test_folds_of_a_method_are_one_line_and_methods_have_a_legend(tmp_path):
    folds = [write_folder(tmp_path / str(n), [logged(10, 0.6, [n / 2] * 10)], data__fold=n) for n in (0, 1)]
    other = write_folder(tmp_path / "b", [logged(10, 0.6, [1.0] * 10)], method="aggmatch")
    figure = panels(*folds, other)["separation"].plots[1].figure
    assert [heights(drawn)[0] for drawn in figure.axes[0].lines] == [25, 100]
    assert [text.get_text() for text in figure.legends[0].texts] == ["fixmatch", "aggmatch"]


def test_class_shares_at_the_beginning_are_circles(tmp_path):
    even = {"pseudo_class_share": [0.1] * 10}
    records = [logged(10, 0.6) | even, *(logged(step, 0.6) for step in range(20, 110, 10))]
    shown = panels(write_folder(tmp_path / "a", records, {}))["class-shares-fixmatch-fold-0"]
    axes: Any = shown.plots[0].figure.axes[0]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([100 * share for share in SHARES])
    assert list(axes.lines[0].get_xdata()) == pytest.approx([10.0] * 10)
    assert "at the beginning (step 10) 0.0 % and at the end (step 100) 45.0 % of the weight" in shown.caption


def test_class_shares_stand_next_to_those_of_the_labels(tmp_path):
    records = [logged(10, 0.6)]
    shown = panels(write_folder(tmp_path / "a", records, {}))["class-shares-fixmatch-fold-0"]
    axes: Any = shown.plots[0].figure.axes[0]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([100 * share for share in SHARES])
    marks = [segment[0][0] for segment in axes.collections[0].get_segments()]
    assert marks == pytest.approx([10.0] * 10), "40 labels, 4 of each class"
    assert [text.get_text() for text in axes.get_yticklabels()] == list("0123456789")
    assert "at the end (step 10) 45.0 % of the weight would have to move" in shown.caption
    assert not axes.lines, "one line of the log is the end, not the beginning"


def test_without_the_truth_only_the_classes_are_drawn(tmp_path):
    folder = write_folder(tmp_path / "a", [line(10, pseudo_coverage=1.0, pseudo_class_share=SHARES)])
    assert list(panels(folder)) == ["class-shares-fixmatch-fold-0"]


def test_a_run_of_an_older_version_has_neither_figure(tmp_path):
    assert not panels(write_folder(tmp_path / "a", [line(10, pseudo_precision=0.5, pseudo_coverage=0.5)]))


def test_a_weight_that_never_met_a_wrong_label_has_no_auc(tmp_path):
    folder = write_folder(tmp_path / "a", [line(10, pseudo_precision_by_weight=[1.0] * 10)])
    assert [plot.name for plot in panels(folder)["separation"].plots] == ["tenths-end"]
