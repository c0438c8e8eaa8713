"""Runs are told apart by colour, shade, line and mark."""

from itertools import pairwise
from pathlib import Path

import pytest
from tests.folders import write_folder

from aggmatch.report.figure import METHOD_COLORS, OTHER_COLORS, method_color
from aggmatch.report.style import LUMINANCES, Look, looks, luminance, shades, with_luminance
from aggmatch.runs.stored import read_runs


def seen(*folders: Path) -> list[Look]:
    runs = read_runs(folders)
    found = looks(runs)
    return [found[run] for run in runs]


def test_methods_have_their_colours_and_marks_of_their_own(tmp_path):
    first, second = seen(write_folder(tmp_path / "a"), write_folder(tmp_path / "b", method="aggmatch"))
    assert (first.color, second.color) == (method_color("fixmatch"), method_color("aggmatch"))
    assert first.line == second.line
    assert first.mark != second.mark


def test_variants_of_a_method_differ_in_everything(tmp_path):
    found = seen(*(write_folder(tmp_path / str(tau), method__threshold=tau) for tau in (0.7, 0.8, 0.9)))
    assert found[0].color == method_color("fixmatch")
    for values in zip(*found, strict=True):
        assert len(set(values)) == 3


def test_runs_of_one_kind_look_alike_whatever_their_fold_and_condition(tmp_path):
    noise = {"data__noise": "symmetric", "data__noise_rate": 0.5}
    other = write_folder(tmp_path / "other", method="aggmatch")
    alike = [write_folder(tmp_path / str(fold), data__fold=fold) for fold in (0, 1)]
    first, _, *rest = seen(alike[0], other, alike[1], write_folder(tmp_path / "noisy", **noise))  # type: ignore[arg-type]
    assert rest == [first, first]


@pytest.mark.parametrize("color", [*METHOD_COLORS.values(), *OTHER_COLORS])
def test_shades_are_apart_and_stand_off_from_a_light_and_a_dark_page(color):
    found = sorted(map(luminance, shades(color)))
    assert len(found) == 3
    assert min(high - low for low, high in pairwise(found)) > 0.03
    assert 1.05 / (found[-1] + 0.05) >= 3, "the least contrast that WCAG asks of graphics"
    assert (found[0] + 0.05) / (luminance("#16181d") + 0.05) >= 3


@pytest.mark.parametrize("wanted", LUMINANCES)
def test_a_colour_is_brought_to_a_luminance(wanted):
    assert luminance(with_luminance("#2878d0", wanted)) == pytest.approx(wanted, abs=0.004)
    assert luminance("#ffffff") == pytest.approx(1)
    assert luminance("#000000") == 0
