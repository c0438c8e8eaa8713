"""Runs differ in colour, line and mark, on a light and on a dark page."""

from itertools import pairwise
from pathlib import Path

import pytest
from matplotlib.colors import to_rgb
from tests.folders import write_folder

from aggmatch.methods import METHODS
from aggmatch.report.figure import Look, class_color, class_mark, looks, method_colors
from aggmatch.report.style import CLASS_COLORS, METHOD_COLORS, OTHER_COLORS
from aggmatch.runs.stored import read_runs

ALL_SHADES = [*METHOD_COLORS.values(), *OTHER_COLORS]


def luminance(color: str) -> float:
    """Relative luminance as in WCAG 2."""
    parts = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in to_rgb(color)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def seen(*folders: Path) -> list[Look]:
    runs = read_runs(folders)
    found = looks(runs)
    return [found[run] for run in runs]


def test_every_method_has_colours_of_its_own():
    assert set(METHOD_COLORS) == set(METHODS.names())
    assert len({color for shades in ALL_SHADES for color in shades}) == 3 * len(ALL_SHADES)
    assert method_colors("mine:Method") == method_colors("mine:Method")
    assert method_colors("mine:Method") in OTHER_COLORS


@pytest.mark.parametrize("page", ["#ffffff", "#16181d"])
@pytest.mark.parametrize("color", sorted({*CLASS_COLORS, *(color for shades in ALL_SHADES for color in shades)}))
def test_colours_contrast_with_a_light_and_a_dark_page(color, page):
    low, high = sorted([luminance(color), luminance(page)])
    assert (high + 0.05) / (low + 0.05) >= 3, "the least contrast that WCAG asks of graphics"


@pytest.mark.parametrize("shades", ALL_SHADES)
def test_shades_of_one_method_differ_in_luminance(shades):
    found = sorted(map(luminance, shades))
    assert min(high - low for low, high in pairwise(found)) > 0.03


def test_classes_with_the_same_colour_have_different_marks():
    assert len({(class_color(number), class_mark(number)) for number in range(20)}) == 20


def test_methods_have_their_colours_and_marks_of_their_own(tmp_path):
    first, second = seen(write_folder(tmp_path / "a"), write_folder(tmp_path / "b", method="aggmatch"))
    assert (first.color, second.color) == (METHOD_COLORS["fixmatch"][0], METHOD_COLORS["aggmatch"][0])
    assert first.line == second.line
    assert first.mark != second.mark


def test_variants_of_a_method_differ_in_everything(tmp_path):
    found = seen(*(write_folder(tmp_path / str(tau), method__threshold=tau) for tau in (0.7, 0.8, 0.9)))
    assert [look.color for look in found] == list(METHOD_COLORS["fixmatch"])
    for values in zip(*found, strict=True):
        assert len(set(values)) == 3


def test_runs_of_one_group_look_the_same_in_every_fold_and_condition(tmp_path):
    noise = {"data__noise": "symmetric", "data__noise_rate": 0.5}
    other = write_folder(tmp_path / "other", method="aggmatch")
    alike = [write_folder(tmp_path / str(fold), data__fold=fold) for fold in (0, 1)]
    first, _, *rest = seen(alike[0], other, alike[1], write_folder(tmp_path / "noisy", **noise))  # type: ignore[arg-type]
    assert rest == [first, first]
