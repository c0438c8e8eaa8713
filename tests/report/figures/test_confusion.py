"""Confusion matrices."""

import numpy as np
import pytest
import torch
from tests.folders import write_folder

from aggmatch.data.builtin.cifar import CIFAR10
from aggmatch.evaluation import Evaluation
from aggmatch.report.figure import pairs_among
from aggmatch.report.figures import draw
from aggmatch.report.figures.predictions import NUMBERED, confusion_shares, draw_confusion
from aggmatch.runs.stored import StoredRun, read_runs


def test_confusion_is_in_percent_of_the_true_class():
    probs = torch.eye(3)[[0, 0, 1, 1]]
    shares = confusion_shares(Evaluation(probs, torch.tensor([0, 1, 1, 1])))
    assert shares.tolist() == [[100, 0, 0], [pytest.approx(100 / 3), pytest.approx(200 / 3), 0], [0, 0, 0]]


def test_confused_pairs_are_framed_both_ways():
    (axes,) = draw_confusion(np.eye(10) * 100, CIFAR10.classes, pairs_among(CIFAR10.classes)).axes
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


@pytest.mark.parametrize("classes", [NUMBERED + 1, 100])
def test_many_classes_have_no_numbers_in_their_squares(classes):
    (axes,) = draw_confusion(np.eye(classes) * 100, [f"class {number}" for number in range(classes)]).axes
    assert not axes.texts


def test_finished_runs_are_shown_with_their_own_accuracy(rivals: list[StoredRun]):
    shown = {panel.name: panel for _, panel in draw(rivals, ["confusion"])}
    assert list(shown) == ["confusion-aggmatch-fold-0", "confusion-fixmatch-fold-0"]
    assert f"{rivals[0].accuracy:.2f} % right" in shown["confusion-aggmatch-fold-0"].caption


def test_an_unfinished_run_has_no_confusion_matrix(tmp_path):
    assert not list(draw(read_runs([write_folder(tmp_path / "run")]), ["confusion"]))
