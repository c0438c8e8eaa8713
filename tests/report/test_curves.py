"""Curves of what was logged: which lines are drawn, of which runs, with which values."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from tests.folders import line, write_folder

from aggmatch.report.figure import Panel
from aggmatch.report.figures import draw
from aggmatch.report.figures.training import Quantity, curve, describe_runs, mean_curve
from aggmatch.report.style import METHOD_COLORS
from aggmatch.runs.stored import StoredRun, read_runs

PRECISION = Quantity("pseudo_precision", "precision", "Precision, %", 100)


def write(path: Path, precision: float = 0.5, **changes: object) -> Path:
    """A run with two log steps and one evaluation."""
    records = [
        line(10, pseudo_precision=precision, pseudo_recall=0.4),
        line(20, pseudo_precision=precision + 0.25, pseudo_recall=0.6, accuracy_average=80.0, accuracy_online=70.0),
    ]
    return write_folder(path, records, **changes)  # type: ignore[arg-type]


def by_name(*folders: Path) -> dict[str, Panel]:
    return {panel.name: panel for _, panel in draw(read_runs(folders), ["curves"])}


def heights(drawn: Any) -> list[float]:
    return list(drawn.get_ydata())


def plots(panel: Panel) -> dict[str, Axes]:
    """The axes of each plot by its name."""
    found = {plot.name: plot.figure.axes for plot in panel.plots}
    assert all(len(axes) == 1 for axes in found.values())
    return {name: axes for name, (axes,) in found.items()}


def legends(panel: Panel) -> list[list[str]]:
    """The names in the legend of each plot."""
    return [[text.get_text() for key in plot.figure.legends for text in key.texts] for plot in panel.plots]


def test_a_curve_has_the_steps_at_which_the_value_was_logged(tmp_path):
    (run,) = read_runs([write(tmp_path / "run")])
    assert curve(run, PRECISION) == ([10, 20], [50, 75])
    assert curve(run, Quantity("accuracy_average", "", "")) == ([20], [80])
    assert curve(run, Quantity("missing", "", "")) == ([], [])


def test_the_mean_is_taken_where_all_runs_have_logged():
    assert mean_curve([([1, 2, 3], [1.0, 2.0, 3.0]), ([1, 3, 5], [3.0, 5.0, 9.0])]) == ([1, 3], [2.0, 4.0])


def test_what_was_not_logged_is_not_drawn(tmp_path):
    assert not by_name(write_folder(tmp_path / "new"))
    assert set(by_name(write_folder(tmp_path / "short", [line(1)]))) == {"losses"}
    assert set(by_name(write(tmp_path / "run"))) == {"accuracy", "losses", "pseudo-labels"}


def test_the_caption_speaks_only_of_what_is_drawn(tmp_path):
    records = [line(5, pseudo_coverage=0.5)]  # of own images, whose true classes are unknown
    caption = by_name(write_folder(tmp_path / "own", records))["pseudo-labels"].caption
    assert "Coverage" in caption
    assert not any(word in caption for word in ("Precision", "Recall", "truth"))
    assert "truth" in by_name(write(tmp_path / "run"))["pseudo-labels"].caption


def test_each_quantity_has_a_plot_and_each_run_a_line(tmp_path):
    shown = by_name(write(tmp_path / "a"), write(tmp_path / "b", method="aggmatch"))["pseudo-labels"]
    assert [axes.get_title(loc="left") for axes in plots(shown).values()] == ["Precision, %", "Recall, %"]
    lines = plots(shown)["precision"].lines
    assert [heights(drawn) for drawn in lines] == [[50, 75], [50, 75]]
    assert [drawn.get_color() for drawn in lines] == [METHOD_COLORS[name][0] for name in ("fixmatch", "aggmatch")]
    assert legends(shown) == [["fixmatch", "aggmatch"]] * 2


def test_each_condition_has_a_plot_of_its_own_on_the_same_scale(tmp_path):
    noise = {"data__noise": "symmetric", "data__noise_rate": 0.5}
    shown = by_name(write(tmp_path / "clean"), write(tmp_path / "noisy", 0.25, **noise))["pseudo-labels"]
    clean, noisy, *_ = shown.plots
    assert (clean.name, clean.heading) == ("precision-digits-40-labels", "digits, 40 labels")
    assert noisy.heading == "digits, 40 labels, 50 % symmetric noise"
    axes = [plot.figure.axes[0] for plot in (clean, noisy)]
    assert [heights(each.lines[0]) for each in axes] == [[50, 75], [25, 50]]
    assert axes[0].get_ylim() == axes[1].get_ylim()


def test_both_networks_have_the_same_scale(tmp_path):
    average, online = plots(by_name(write(tmp_path / "run"))["accuracy"]).values()
    assert average.get_ylim() == online.get_ylim()
    low, high = average.get_ylim()
    assert low <= 70 < 80 <= high


def test_a_single_group_of_runs_needs_no_legend(tmp_path):
    assert legends(by_name(write(tmp_path / "run"))["pseudo-labels"]) == [[], []]


def test_folds_are_drawn_thin_with_their_mean_over_them(tmp_path):
    folds = [write(tmp_path / str(fold), fold / 2, data__fold=fold) for fold in (0, 1)]
    first, second, mean = plots(by_name(*folds)["pseudo-labels"])["precision"].lines
    assert first.get_linewidth() == second.get_linewidth() < mean.get_linewidth()
    assert heights(mean) == [25, 50]


def test_variants_of_one_method_differ_in_their_lines(tmp_path):
    variants = [write(tmp_path / str(tau), method__threshold=tau) for tau in (0.8, 0.9)]
    lines = plots(by_name(*variants)["pseudo-labels"])["precision"].lines
    assert lines[0].get_color() != lines[1].get_color()
    assert lines[0].get_linestyle() != lines[1].get_linestyle()
    assert [drawn.get_marker() for drawn in lines] == ["None", "s"]


def test_a_single_value_is_a_mark_as_it_has_no_line(tmp_path):
    shown = by_name(write(tmp_path / "run"))
    assert plots(shown["accuracy"])["average"].lines[0].get_marker() == "o"
    assert plots(shown["pseudo-labels"])["precision"].lines[0].get_marker() == "None"


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
    assert curve(run, Quantity("pseudo_recall", "", ""))[1] == list(coverage), "recall of nothing is 0"
    means = mean_curve([(steps, values), (steps, [50.0] * 4)])[1]
    assert means == pytest.approx([np.nan, 75, np.nan, 75], nan_ok=True)


def test_precision_is_not_drawn_if_no_pseudo_label_ever_counts(tmp_path):
    records = [line(5, pseudo_precision=0.0, pseudo_recall=0.0, pseudo_coverage=0.0)]
    shown = plots(by_name(write_folder(tmp_path / "run", records))["pseudo-labels"])
    assert list(shown) == ["recall", "coverage"]
    assert shown["recall"].get_ylim() == (0, 1), "a share of 0 has an axis without negative values"


@pytest.mark.parametrize(("values", "ends"), [((0.5, 1.0), 100), ((0.9999, 1.0), 100), ((0.0, 0.5), None)])
def test_the_axis_of_a_share_stays_within_its_bounds(tmp_path, values, ends):
    records = [line(step, pseudo_coverage=value) for step, value in enumerate(values, 1)]
    low, high = plots(by_name(write_folder(tmp_path / "run", records))["pseudo-labels"])["coverage"].get_ylim()
    assert low == pytest.approx({0.5: 47.5, 0.9999: 99, 0.0: 0}[values[0]])
    assert high == (ends or pytest.approx(52.5))


@pytest.mark.parametrize(
    ("values", "scale"), [((0.2, 2.0), "log"), ((0.3, 2.0), "linear"), ((0.0, 2.0), "linear"), ((-1.0, 2.0), "linear")]
)
def test_losses_that_spread_widely_have_a_logarithmic_axis_with_a_scale_to_read(tmp_path, values, scale):
    records = [line(step, loss_unlabeled=value) for step, value in enumerate(values, 1)]
    axes = plots(by_name(write_folder(tmp_path / "run", records))["losses"])["unlabeled"]
    low, high = axes.get_ylim()
    assert axes.get_yscale() == scale
    assert (low < 0) == (values[0] < 0)
    assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 2


def test_the_legend_names_the_groups_that_have_values(tmp_path):
    without = write_folder(tmp_path / "without", [line(5, pseudo_recall=0.1)])
    shown = by_name(without, write(tmp_path / "with", method="aggmatch"))["pseudo-labels"]
    assert legends(shown) == [["aggmatch"], ["fixmatch", "aggmatch"]]


def test_captions_name_data_labels_methods_and_folds(tmp_path):
    folds = [write(tmp_path / str(fold), data__fold=fold) for fold in (0, 2)]
    words = describe_runs(read_runs([*folds, write(tmp_path / "a", method="aggmatch")]))
    assert words == (
        "digits, 40 labels: fixmatch (paper recipe, folds 0, 2), aggmatch (paper recipe, fold 0). "
        "Thin lines are single runs, thick lines their means."
    )
    assert describe_runs(read_runs(folds[:1])) == "digits, 40 labels: fixmatch (paper recipe, fold 0)."
    cold = read_runs([folds[0], write(tmp_path / "cold", recipe="cold-start")])
    names = "fixmatch, paper recipe (fold 0), fixmatch, cold-start recipe (fold 0)"
    assert describe_runs(cold) == f"digits, 40 labels: {names}."


def test_long_runs_have_short_numbers_of_steps(tmp_path):
    records = [line(step, pseudo_recall=0.5) for step in (1, 1_000_000)]
    axes = plots(by_name(write_folder(tmp_path / "run", records))["pseudo-labels"])["recall"]
    axes.figure.draw_without_rendering()  # type: ignore[union-attr]
    assert "250k" in [text.get_text() for text in axes.get_xticklabels()]


def test_real_runs_give_all_curves(rivals: list[StoredRun]):
    names = [panel.name for _, panel in draw(rivals, ["training"])]
    shares = [f"class-shares-{method}-fold-0" for method in ("aggmatch", "fixmatch")]
    assert names == ["accuracy", "losses", "pseudo-labels", "separation", *shares, "queue-aggmatch-fold-0"]
