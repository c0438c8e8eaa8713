"""Names of classes and bars of class distributions."""

import numpy as np
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from aggmatch.data.cifar import CIFAR10
from aggmatch.report.figure import BARS, draw_distributions, name_classes, pairs_among, shown_classes
from aggmatch.report.style import ACCENT, NEUTRAL, RIGHT, WRONG


def test_the_papers_pairs_are_found_among_the_classes_of_cifar():
    pairs = [(CIFAR10.classes[first], CIFAR10.classes[second]) for first, second in pairs_among(CIFAR10.classes)]
    assert pairs == [("cat", "dog"), ("deer", "horse"), ("airplane", "bird"), ("automobile", "truck")]
    assert pairs_among(["0", "1"]) == []
    assert pairs_among(["cat", "horse"]) == []


def test_bars_are_shown_of_all_classes_or_of_the_largest_and_the_true_one():
    assert shown_classes([np.array([0.5, 0.5, 0.0], dtype=np.float32)], 2) == [0, 1, 2]
    probs = np.arange(100, dtype=np.float32)
    shown = shown_classes([probs, np.zeros_like(probs)], 3)
    assert shown == [3, *range(100 - BARS + 1, 100)]
    assert shown_classes([probs], -1) == list(range(100 - BARS, 100)), "if the truth is unknown"


def colors(truth: int) -> list[list[str]]:
    """Colours of the bars of two distributions over three classes."""
    axes = list(Figure().subplots(1, 2))
    distributions = [np.array(probs, dtype=np.float32) for probs in ([0.2, 0.7, 0.1], [0.6, 0.3, 0.1])]
    draw_distributions(axes, distributions, truth, ["a", "b", "a class with a long name"])
    assert [[text.get_text() for text in each.get_yticklabels()] for each in axes] == [["a", "b", "a class with …"], []]
    return [[to_hex(bar.get_facecolor()) for bar in each.patches] for each in axes]


def test_the_true_class_is_green_and_a_wrong_favourite_red():
    assert colors(0) == [[RIGHT, WRONG, NEUTRAL], [RIGHT, NEUTRAL, NEUTRAL]]


def test_without_a_known_truth_nothing_is_right_or_wrong():
    assert colors(-1) == [[NEUTRAL, ACCENT, NEUTRAL], [ACCENT, NEUTRAL, NEUTRAL]]


def test_many_classes_are_not_named():
    axes = Figure().subplots()
    name_classes(axes, [f"class {number}" for number in range(100)])
    assert not axes.get_xticklabels()
    assert not axes.get_yticklabels()
