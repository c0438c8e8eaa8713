"""Accuracy by class, confusion and calibration."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.folders import write_folder

from aggmatch.data.cifar import CIFAR10
from aggmatch.errors import AggMatchError
from aggmatch.evaluation import Evaluation
from aggmatch.methods.aggmatch.aggregation import Aggregate
from aggmatch.report.figure import MANY
from aggmatch.report.predictions import (
    class_order,
    confusion_shares,
    draw_calibration,
    draw_class_accuracy,
    draw_confusion,
    pairs_among,
    panels,
    reliabilities,
    reliability,
)
from aggmatch.report.pseudo_labels import PseudoLabeled, pseudo_labels_at
from aggmatch.report.style import Look
from aggmatch.runs.stored import RunRecord, read_runs


def test_reliability_by_hand():
    confidence = torch.tensor([0.1, 0.3, 0.9, 0.7, 1.0])
    right = torch.tensor([True, False, True, False, True])
    found = reliability(confidence, right, bins=2)
    assert found.count.tolist() == [2, 3]
    assert found.confidence == pytest.approx([0.2, 2.6 / 3])
    assert found.accuracy == pytest.approx([0.5, 2 / 3])
    assert found.error == pytest.approx(2 / 5 * 0.3 + 3 / 5 * 0.2)


def test_a_bin_ends_with_its_upper_edge_and_empty_ones_are_left_out():
    found = reliability(torch.tensor([0.0, 0.5, 0.51]), torch.ones(3, dtype=torch.bool), bins=4)
    assert found.count.tolist() == [1, 1, 1]
    assert reliability(torch.tensor([0.25, 0.2]), torch.ones(2, dtype=torch.bool), bins=4).count.tolist() == [2]


def test_calibrated_confidences_have_no_error():
    confidence = torch.tensor([0.75] * 4 + [1.0] * 3)
    right = torch.tensor([True, True, True, False, True, True, True])
    assert reliability(confidence, right).error == pytest.approx(0)


def test_each_confidence_is_held_against_its_own_label():
    own = torch.tensor([[0.6, 0.4]])
    aggregated = Aggregate(torch.tensor([[0.1, 0.9]]), torch.tensor([[0.25, 0.75]]), torch.tensor([0.57]))
    found = PseudoLabeled(1, torch.tensor([0]), torch.tensor([1]), own, aggregated, refines=True)
    p, refined, consensus = reliabilities(found).values()
    assert (p.confidence[0], p.accuracy[0]) == (pytest.approx(0.6), 0)
    assert (refined.confidence[0], refined.accuracy[0]) == (pytest.approx(0.9), 1)
    assert (consensus.confidence[0], consensus.accuracy[0]) == (pytest.approx(0.57), 1)
    alone = PseudoLabeled(1, torch.tensor([0]), torch.tensor([1]), own, None, refines=False)
    assert len(reliabilities(alone)) == 1


def test_the_papers_pairs_are_found_among_the_classes_of_cifar():
    pairs = [(CIFAR10.classes[first], CIFAR10.classes[second]) for first, second in pairs_among(CIFAR10.classes)]
    assert pairs == [("cat", "dog"), ("deer", "horse"), ("airplane", "bird"), ("automobile", "truck")]
    assert pairs_among(["0", "1"]) == []
    assert pairs_among(["cat", "horse"]) == []


def test_pairs_stand_side_by_side_and_of_many_classes_the_worst_are_shown():
    assert class_order(["dog", "frog", "cat"], np.zeros(3)) == [2, 0, 1]
    many = [str(number) for number in range(100)]
    assert class_order(many, np.arange(100.0)[::-1]) == list(range(99, 99 - MANY, -1))


def test_confusion_is_in_percent_of_the_true_class():
    probs = torch.eye(3)[[0, 0, 1, 1]]
    shares = confusion_shares(Evaluation(probs, torch.tensor([0, 1, 1, 1])))
    assert shares.tolist() == [[100, 0, 0], [pytest.approx(100 / 3), pytest.approx(200 / 3), 0], [0, 0, 0]]


def test_confused_pairs_are_framed_both_ways():
    (axes,) = draw_confusion(np.eye(10) * 100, CIFAR10.classes).axes
    frames = {(round(frame.get_y() + 0.5), round(frame.get_x() + 0.5)) for frame in axes.patches}  # type: ignore[attr-defined]
    cat, dog = CIFAR10.classes.index("cat"), CIFAR10.classes.index("dog")
    assert {(cat, dog), (dog, cat)} <= frames
    assert len(frames) == 8
    assert not draw_confusion(np.eye(3) * 100, ["0", "1", "2"]).axes[0].patches


def test_every_number_of_the_confusion_matrix_is_shown():
    (axes,) = draw_confusion(np.array([[99.7, 0.3], [40.0, 60.0]]), ["a", "b"]).axes
    assert [text.get_text() for text in axes.texts] == ["100", "<½", "40", "60"]


def test_halves_of_the_confusion_matrix_are_rounded_up():
    (axes,) = draw_confusion(np.array([[99.5, 0.5], [2.5, 97.5]]), ["a", "b"]).axes
    assert [text.get_text() for text in axes.texts] == ["100", "1", "3", "98"]


def test_a_hundred_classes_are_drawn_without_names():
    (axes,) = draw_confusion(np.eye(100) * 100, [f"class {number}" for number in range(100)]).axes
    assert not axes.texts
    assert not axes.get_xticklabels()


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
    panel = next(iter(panels(runs)))
    assert panel.name == "class-accuracy-digits-40-labels"
    assert places(panel.figure.axes[0].lines[0]) == [50, 50, 50, 10, 50, 50, 50, 50, 50, 50]
    assert "fixmatch (n = 1)" in panel.caption


def test_a_real_run_gives_all_of_them_with_its_own_accuracy(rivals: list[RunRecord]):
    shown = {panel.name: panel for panel in panels(rivals)}
    assert list(shown) == [
        "class-accuracy-digits-20-labels",
        "confusion-aggmatch-fold-0",
        "confusion-fixmatch-fold-0",
        "calibration",
    ]
    assert rivals[0].summary is not None
    assert f"{rivals[0].summary['accuracy']:.2f} % right" in shown["confusion-aggmatch-fold-0"].caption
    for method in ("aggmatch", "fixmatch"):
        told = f"{method} on digits, 20 labels, fold 0, step 30, 1,417 unlabelled training images"
        assert told in shown["calibration"].caption
    titles = [axes.get_title(loc="left") for axes in shown["calibration"].figure.axes]
    assert titles[:4] == [
        "aggmatch fold 0\nown prediction, max p",
        "aggmatch fold 0\nrefined, max p̄",
        "aggmatch fold 0\nconsensus, c̄",
        "fixmatch fold 0\nown prediction, max p",
    ]


def test_the_calibration_of_one_run_needs_no_name(fixmatch_run: RunRecord):
    *_, panel = panels([fixmatch_run])
    assert panel.title == "Calibration of pseudo labels, fixmatch fold 0"
    assert panel.figure.axes[0].get_title(loc="left") == "own prediction, max p"


@pytest.mark.parametrize(("count", "rows", "columns"), [(1, 1, 1), (4, 1, 4), (5, 2, 3), (6, 2, 3)])
def test_calibrations_stand_in_rows_without_holes_between_them(count, rows, columns):
    found = reliability(torch.tensor([0.3, 0.9]), torch.tensor([True, True]))
    figure = draw_calibration([(f"{number}", found, "#2878d0") for number in range(count)])
    assert len(figure.axes) == 2 * rows * columns
    shown = [axes for axes in figure.axes if axes.axison]
    assert len(shown) == 2 * count
    assert [axes.get_title(loc="left") for axes in shown if axes.lines] == [f"{number}" for number in range(count)]


def test_a_damaged_snapshot_takes_only_its_own_calibration_away(rivals: list[RunRecord], monkeypatch):
    def damaged(run: RunRecord, path: Path) -> PseudoLabeled:
        if run.method == "aggmatch":
            raise AggMatchError(f"{path.name} is damaged.")
        return pseudo_labels_at(run, path)

    monkeypatch.setattr("aggmatch.report.predictions.pseudo_labels_at", damaged)
    shown = panels(rivals)
    assert [next(shown).name for _ in range(3)][-1] == "confusion-fixmatch-fold-0"
    assert next(shown).title == "Calibration of pseudo labels, fixmatch fold 0"
    with pytest.raises(AggMatchError, match=r"^step-00000030.safetensors is damaged.$"):
        next(shown)


def test_an_unfinished_run_without_snapshots_has_none_of_them(tmp_path):
    assert not list(panels(read_runs([write_folder(tmp_path / "run")])))
