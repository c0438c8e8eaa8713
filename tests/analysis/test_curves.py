"""Curves of what was logged: which lines are drawn, of which runs, with which values."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tests.analysis.folders import line, write_folder

from aggmatch.analysis.curves import Quantity, curve, describe, mean_curve, panels, queue_fill
from aggmatch.analysis.panel import Panel, method_color
from aggmatch.analysis.runs import RunRecord, read_runs

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
    assert lines[0].get_color() == lines[1].get_color()
    assert lines[0].get_linestyle() != lines[1].get_linestyle()


def test_a_single_value_is_a_mark_as_it_has_no_line(tmp_path):
    shown = by_name(write(tmp_path / "run"))
    assert plots(shown["accuracy"].figure)[0].lines[0].get_marker() == "o"
    assert plots(shown["pseudo-labels"].figure)[0].lines[0].get_marker() == ""


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
    (axes,) = panel.figure.axes
    assert [text.get_text() for text in axes.texts] == ["2"] * 9 + ["4"]


def test_real_runs_give_all_of_them(rivals: list[RunRecord]):
    names = [panel.name for panel in panels(rivals)]
    assert names == ["accuracy", "losses", "pseudo-labels", "queue-aggmatch-fold-0"]
