"""Accuracy by class, confusion and calibration."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.analysis.folders import write_folder

from aggmatch.aggregation import Aggregate
from aggmatch.analysis.panel import MANY
from aggmatch.analysis.predictions import (
    class_order,
    confusion_shares,
    draw_class_accuracy,
    draw_confusion,
    pairs_among,
    panels,
    reliabilities,
    reliability,
)
from aggmatch.analysis.pseudo_labels import PseudoLabeled
from aggmatch.analysis.runs import RunRecord, read_runs
from aggmatch.data.cifar import CIFAR10
from aggmatch.evaluation import Evaluation


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


def test_a_hundred_classes_are_drawn_without_names():
    (axes,) = draw_confusion(np.eye(100) * 100, [f"class {number}" for number in range(100)]).axes
    assert not axes.texts
    assert not axes.get_xticklabels()


def places(marks: Any) -> list[float]:
    return list(marks.get_xdata())


def test_marks_are_means_over_folds():
    accuracy = {"aggmatch": np.array([[90.0, 70.0], [100.0, 80.0]])}
    (axes,) = draw_class_accuracy(accuracy, {"aggmatch": "aggmatch"}, ["a", "b"], [1, 0]).axes
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
    kinds = ("confusion", "calibration")
    assert list(shown) == [
        "class-accuracy-digits-20-labels",
        *(f"{kind}-{method}-fold-0" for kind in kinds for method in ("aggmatch", "fixmatch")),
    ]
    assert rivals[0].summary is not None
    assert f"{rivals[0].summary['accuracy']:.2f} % right" in shown["confusion-aggmatch-fold-0"].caption
    assert "1,417 unlabelled training images" in shown["calibration-aggmatch-fold-0"].caption
    titles = [axes.get_title(loc="left") for axes in shown["calibration-aggmatch-fold-0"].figure.axes]
    assert titles[:3] == ["own prediction, max p", "refined, max p̄", "consensus, c̄"]


def test_an_unfinished_run_without_snapshots_has_none_of_them(tmp_path):
    assert not list(panels(read_runs([write_folder(tmp_path / "run")])))
