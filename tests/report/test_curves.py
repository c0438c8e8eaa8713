"""Curves of what was logged: which lines are drawn, of which runs, with which values."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tests.folders import line, write_folder

from aggmatch.report.curves import Quantity, curve, decades, describe, full, mean_curve, panels, queue_fill
from aggmatch.report.figure import Panel, method_color
from aggmatch.runs.stored import RunRecord, read_runs

PRECISION = Quantity("pseudo_precision", "Precision, %", 100)


def write(path: Path, precision: float = 0.5, **changes: object) -> Path:
    """A run with two log steps and one evaluation."""
    records = [
        line(10, pseudo_precision=precision, pseudo_recall=0.4),
        line(20, pseudo_precision=precision + 0.25, pseudo_recall=0.6, accuracy_average=80.0, accuracy_online=70.0),
    ]
    return write_folder(path, records, **changes)  # type: ignore[arg-type]


def by_name(*folders: Path) -> dict[str, Panel]:
    return {panel.name: panel for panel in panels(read_runs(folders))}


def places(drawn: Any) -> list[float]:
    return list(drawn.get_xdata())


def heights(drawn: Any) -> list[float]:
    return list(drawn.get_ydata())


def plots(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.lines]


def test_a_curve_has_the_steps_at_which_the_value_was_logged(tmp_path):
    (run,) = read_runs([write(tmp_path / "run")])
    assert curve(run, PRECISION) == ([10, 20], [50, 75])
    assert curve(run, Quantity("accuracy_average", "")) == ([20], [80])
    assert curve(run, Quantity("missing", "")) == ([], [])


def test_the_mean_is_taken_where_all_runs_have_logged():
    assert mean_curve([([1, 2, 3], [1.0, 2.0, 3.0]), ([1, 3, 5], [3.0, 5.0, 9.0])]) == ([1, 3], [2.0, 4.0])


def test_what_was_not_logged_is_not_drawn(tmp_path):
    assert not by_name(write_folder(tmp_path / "new"))
    assert set(by_name(write_folder(tmp_path / "short", [line(1)]))) == {"losses"}
    assert set(by_name(write(tmp_path / "run"))) == {"accuracy", "losses", "pseudo-labels"}


def test_one_condition_puts_one_plot_for_each_quantity_and_one_line_for_each_run(tmp_path):
    shown = by_name(write(tmp_path / "a"), write(tmp_path / "b", method="aggmatch"))
    precision, recall = plots(shown["pseudo-labels"].figure)
    assert [axes.get_title(loc="left") for axes in (precision, recall)] == ["Precision, %", "Recall, %"]
    assert [heights(drawn) for drawn in precision.lines] == [[50, 75], [50, 75]]
    assert [drawn.get_color() for drawn in precision.lines] == [method_color("fixmatch"), method_color("aggmatch")]


def test_clean_and_noisy_runs_stand_side_by_side(tmp_path):
    noise = {"data__noise": "symmetric", "data__noise_rate": 0.5}
    shown = by_name(write(tmp_path / "clean"), write(tmp_path / "noisy", 0.25, **noise))
    clean, noisy, *_ = plots(shown["pseudo-labels"].figure)
    assert clean.get_title(loc="left") == "digits, 40 labels"
    assert noisy.get_title(loc="left").replace("\n", " ") == "digits, 40 labels, 50 % symmetric noise"
    assert heights(clean.lines[0]) == [50, 75]
    assert heights(noisy.lines[0]) == [25, 50]
    assert [text.get_text() for text in shown["pseudo-labels"].figure.legends[0].texts] == ["fixmatch"]


def test_folds_are_drawn_thin_with_their_mean_over_them(tmp_path):
    folds = [write(tmp_path / str(fold), fold / 2, data__fold=fold) for fold in (0, 1)]
    first, second, mean = plots(by_name(*folds)["pseudo-labels"].figure)[0].lines
    assert first.get_linewidth() == second.get_linewidth() < mean.get_linewidth()
    assert heights(mean) == [25, 50]


def test_variants_of_one_method_differ_in_their_lines(tmp_path):
    variants = [write(tmp_path / str(tau), method__threshold=tau) for tau in (0.8, 0.9)]
    lines = plots(by_name(*variants)["pseudo-labels"].figure)[0].lines
    assert lines[0].get_color() != lines[1].get_color()
    assert lines[0].get_linestyle() != lines[1].get_linestyle()
    assert [drawn.get_marker() for drawn in lines] == ["None", "s"]


def test_a_single_value_is_a_mark_as_it_has_no_line(tmp_path):
    shown = by_name(write(tmp_path / "run"))
    assert plots(shown["accuracy"].figure)[0].lines[0].get_marker() == "o"
    assert plots(shown["pseudo-labels"].figure)[0].lines[0].get_marker() == "None"


def test_precision_of_nothing_is_a_gap(tmp_path):
    coverage = (0.0, 0.5, 0.0, 0.5)
    records = [
        line(step, pseudo_precision=2 * each, pseudo_recall=each, pseudo_coverage=each)
        for step, each in enumerate(coverage, 1)
    ]
    (run,) = read_runs([write_folder(tmp_path / "run", records)])
    steps, values = curve(run, PRECISION)
    assert steps == [1, 2, 3, 4]
    assert values == pytest.approx([np.nan, 100, np.nan, 100], nan_ok=True)
    assert curve(run, Quantity("pseudo_recall", ""))[1] == list(coverage), "recall of nothing is 0"
    means = mean_curve([(steps, values), (steps, [50.0] * 4)])[1]
    assert means == pytest.approx([np.nan, 75, np.nan, 75], nan_ok=True)


def test_precision_is_not_drawn_where_there_never_is_any(tmp_path):
    records = [line(5, pseudo_precision=0.0, pseudo_recall=0.0, pseudo_coverage=0.0)]
    figure = by_name(write_folder(tmp_path / "run", records))["pseudo-labels"].figure
    assert [axes.get_title(loc="left") for axes in plots(figure)] == ["Recall, %", "Coverage, %"]
    assert plots(figure)[0].get_ylim() == (0, 1), "a share of 0 has an axis without negative values"


@pytest.mark.parametrize(("values", "ends"), [((0.5, 1.0), 100), ((0.9999, 1.0), 100), ((0.0, 0.5), None)])
def test_shares_end_where_shares_end(tmp_path, values, ends):
    records = [line(step, pseudo_coverage=value) for step, value in enumerate(values, 1)]
    low, high = plots(by_name(write_folder(tmp_path / "run", records))["pseudo-labels"].figure)[0].get_ylim()
    assert low == pytest.approx({0.5: 47.5, 0.9999: 99, 0.0: 0}[values[0]])
    assert high == (ends or pytest.approx(52.5))


@pytest.mark.parametrize(
    ("values", "scale"), [((0.2, 2.0), "log"), ((0.3, 2.0), "linear"), ((0.0, 2.0), "linear"), ((-1.0, 2.0), "linear")]
)
def test_losses_that_spread_widely_have_a_logarithmic_axis_with_a_scale_to_read(tmp_path, values, scale):
    records = [line(step, loss_unlabeled=value) for step, value in enumerate(values, 1)]
    axes = plots(by_name(write_folder(tmp_path / "run", records))["losses"].figure)[-1]
    low, high = axes.get_ylim()
    assert axes.get_yscale() == scale
    assert (low < 0) == (values[0] < 0)
    assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 2


def test_the_legend_names_runs_in_the_order_given(tmp_path):
    without = write_folder(tmp_path / "without", [line(5, pseudo_recall=0.1)])
    shown = by_name(without, write(tmp_path / "with", method="aggmatch"))
    names = [text.get_text() for text in shown["pseudo-labels"].figure.legends[0].texts]
    assert names == ["fixmatch", "aggmatch"]


def test_a_legend_of_long_names_stays_within_the_figure(tmp_path):
    shown = by_name(
        *(write(tmp_path / str(tau), method__threshold=tau, method__unlabeled_weight=tau) for tau in (0.7, 0.8))
    )
    figure = shown["accuracy"].figure
    figure.draw_without_rendering()
    names = figure.legends[0].get_window_extent()
    assert figure.bbox.x0 <= names.x0
    assert names.x1 <= figure.bbox.x1


def test_captions_name_data_labels_methods_and_folds(tmp_path):
    folds = [write(tmp_path / str(fold), data__fold=fold) for fold in (0, 2)]
    words = describe(read_runs([*folds, write(tmp_path / "a", method="aggmatch")]))
    assert words == (
        "digits, 40 labels: fixmatch (folds 0, 2), aggmatch (fold 0). "
        "Thin lines are single runs, thick ones their mean."
    )
    assert describe(read_runs(folds[:1])) == "digits, 40 labels: fixmatch (fold 0)."


def test_the_queue_is_shown_ring_by_ring(tmp_path):
    records = [line(5, queue_fill=[1] * 9 + [3]), line(10, queue_fill=[2] * 9 + [4])]
    folder = write_folder(tmp_path / "run", records, {}, method="aggmatch", method__slots=4)
    (run,) = read_runs([folder])
    steps, fill = queue_fill(run) or ([], None)
    assert steps == [5, 10]
    assert fill is not None
    assert fill[[0, 9]].tolist() == [[1, 2], [3, 4]]
    panel = by_name(folder)["queue-aggmatch-fold-0"]
    assert "of 4 for each class" in panel.caption
    assert "9 of 10 not full" in panel.caption
    (axes,) = panel.figure.axes
    assert [text.get_text() for text in axes.texts] == ["2"] * 9 + ["4"]
    assert places(axes.lines[0]) == [0, 5, 10]
    assert heights(axes.lines[0]) == pytest.approx([0.4, 0.2, 0]), "from the lower edge of its row to the middle"
    assert heights(axes.lines[9]) == pytest.approx([9.4, 8.8, 8.6]), "to its upper edge"


def test_it_is_said_when_the_whole_queue_was_full():
    assert full([5, 10, 20], np.array([[4, 4, 4], [1, 4, 4]]), 4) == "all full at step 10"
    assert full([5, 10, 20], np.array([[4, 4, 4], [1, 2, 3]]), 4) == "1 of 2 not full"


@pytest.mark.parametrize(("summary", "top"), [({}, 0.4 - 0.8 * 6 / 40), (None, -0.4)])
def test_one_ring_has_the_slots_of_all_classes_as_far_as_their_number_is_known(tmp_path, summary, top):
    changes = {"method": "aggmatch", "method__slots": 4, "method__class_balanced": False}
    folder = write_folder(tmp_path / "run", [line(5, queue_fill=[3]), line(10, queue_fill=[6])], summary, **changes)  # type: ignore[arg-type]
    panel = by_name(folder)["queue-aggmatch-fold-0"]
    assert "in one ring for all classes" in panel.caption
    assert ("1 of 1 not full" in panel.caption) == (summary is not None)
    assert heights(panel.figure.axes[0].lines[0])[-1] == pytest.approx(top)


def test_steps_are_named_where_they_stand_off_from_each_other():
    assert decades(100, 60_000) == [0, 100, 1000, 10_000, 60_000]
    assert decades(60, 150) == [0, 60, 150]
    assert decades(5, 5) == [0, 5]


def test_real_runs_give_all_of_them(rivals: list[RunRecord]):
    names = [panel.name for panel in panels(rivals)]
    assert names == ["accuracy", "losses", "pseudo-labels", "queue-aggmatch-fold-0"]
