"""Names of classes and bars of class distributions."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from aggmatch.data.builtin.cifar import CIFAR10
from aggmatch.report.figure import (
    BARS,
    draw_distributions,
    name_classes,
    pairs_among,
    short,
    short_names,
    shown_classes,
)
from aggmatch.report.figures.features import draw_maps
from aggmatch.report.figures.predictions import draw_confusion
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
    name_classes(axes, [f"class {number}" for number in range(100)], side=2.0)
    assert not axes.get_xticklabels()
    assert not axes.get_yticklabels()


LONG = [
    f"{first} {second}" for first in ("a leaking pipe", "WIDE WORDS", "slippery", "end of all") for second in "abcde"
]


@pytest.mark.parametrize("count", [3, 10, 14, 20])
@pytest.mark.parametrize("map_", ["confusion", "attention"])
def test_names_of_classes_do_not_overlap(map_, count):
    shares = np.full((count, count), 0.5, dtype=np.float32)
    figure = (
        draw_confusion(shares, LONG[:count])
        if map_ == "confusion"
        else draw_maps({"all": shares}, LONG[:count], "class")
    )
    figure.draw_without_rendering()
    for labels, low, high in (
        (figure.axes[0].get_xticklabels(), "x0", "x1"),
        (figure.axes[0].get_yticklabels()[::-1], "y0", "y1"),
    ):
        boxes = [label.get_window_extent() for label in labels]
        assert len(boxes) == count, "all are named"
        assert all(getattr(box, high) <= getattr(after, low) + 0.5 for box, after in pairwise(boxes))


def test_names_that_are_cut_stay_distinct():
    assert short_names(["short", "a long name of a class", "end of all limits"]) == [
        "short",
        "a long name o…",
        "end of all li…",
    ]
    assert short_names(["slippery road on the left", "slippery road on the right"]) == [
        "slippe…e left",
        "slippe… right",
    ]


def test_wide_letters_need_more_room():
    assert short("交通信号灯和停车标志") == "交通信号灯和…"
