"""Figures as files and as parts of a page, readable in light and dark."""

import re
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from aggmatch.methods import METHODS
from aggmatch.report import figure as panels
from aggmatch.report.figure import FOREGROUND, METHOD_COLORS, Panel, file_bytes, house_style, method_color, slug, svg

XLINK = "{http://www.w3.org/1999/xlink}href"


@house_style()
def example(name: str = "example", title: str = "An <example> & more") -> Panel:
    """A panel with text, lines, clipping, shades and a picture."""
    figure = panels.new_figure(4, 2)
    lines, shades, image = figure.subplots(1, 3)
    lines.plot([0, 1], [0, 2], label="a line")
    lines.legend()
    panels.heat_map(shades, np.eye(3))
    panels.name_classes(shades, ["cat", "dog", "$x$"])
    panels.picture(image, np.arange(48, dtype=np.uint8).reshape(3, 4, 4))
    return Panel(name, title, "A caption.", figure)


def ids(source: str) -> list[str]:
    return re.findall(r'\bid="([^"]*)"', source)


def test_the_svg_takes_its_foreground_from_the_page():
    source = svg(example())
    assert FOREGROUND not in source
    assert "currentColor" in source
    assert "#ffffff" not in source
    ElementTree.fromstring(source)


def test_the_svg_holds_everything_and_reaches_nothing_outside_of_it():
    source = svg(example())
    root = ElementTree.fromstring(source)
    assert "<style" not in source, "a style sheet would reach the whole page"
    assert "data:image/png;base64" in source
    own = {"#" + name for name in ids(source)}
    links = [element.get(XLINK, "") for element in root.iter()]
    assert all(link.startswith("data:") or link in own for link in links if link)
    assert set(re.findall(r"url\((#[^)]*)\)", source)) <= own


def test_text_stays_text_and_dollar_signs_are_no_formulas():
    root = ElementTree.fromstring(svg(example()))
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"a line", "cat", "$x$"} <= texts


def test_panels_of_one_page_share_no_id():
    first, second = ids(svg(example("one"))), ids(svg(example("two")))
    assert len(set(first)) == len(first)
    assert not set(first) & set(second)


def test_the_same_figure_gives_the_same_svg():
    assert svg(example()) == svg(example())


def test_files_are_what_their_kind_says():
    assert file_bytes(example(), "png").startswith(b"\x89PNG")
    assert file_bytes(example(), "pdf").startswith(b"%PDF")
    alone = file_bytes(example(), "svg").decode()
    assert "prefers-color-scheme: dark" in alone
    root = ElementTree.fromstring(alone)
    assert root.get("aria-label") == "An <example> & more"


def test_the_house_style_ends_with_the_drawing():
    before = dict(mpl.rcParams)
    example()
    assert dict(mpl.rcParams) == before


def test_the_house_style_does_not_depend_on_the_users():
    usual = svg(example())
    with mpl.rc_context({"font.size": 20, "lines.marker": "o", "xtick.direction": "in"}):
        assert svg(example()) == usual


def test_every_method_has_a_colour_of_its_own():
    assert set(METHOD_COLORS) == set(METHODS.names())
    assert len(set(METHOD_COLORS.values())) == len(METHOD_COLORS)
    assert method_color("mine:Method") == method_color("mine:Method")


def luminance(color: str) -> float:
    """Relative luminance as in WCAG 2."""
    parts = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in to_rgb(color)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


@pytest.mark.parametrize("page", ["#ffffff", "#16181d"])
@pytest.mark.parametrize("color", sorted({*METHOD_COLORS.values(), *panels.OTHER_COLORS, *panels.CLASS_COLORS}))
def test_colours_stand_off_from_a_light_and_a_dark_page(color, page):
    low, high = sorted([luminance(color), luminance(page)])
    assert (high + 0.05) / (low + 0.05) >= 3, "the least contrast that WCAG asks of graphics"


def test_a_long_legend_does_not_take_its_room_from_the_plot():
    def height(names: int) -> float:
        with house_style():
            figure = panels.new_figure(4, 2)
            axes = figure.subplots()
            panels.legend(figure, {f"a rather long name {number}": axes.plot([0, 1])[0] for number in range(names)})
            figure.draw_without_rendering()
        return float(axes.get_window_extent().height)

    assert height(9) == pytest.approx(height(1), rel=0.05)


def test_a_name_becomes_part_of_a_file_name():
    assert slug("AggMatch, 25 % noise, fold 0") == "aggmatch-25-noise-fold-0"
    long = ["x" * 500 + end for end in "ab"]
    assert len({slug(text) for text in long}) == 2
    assert max(len(slug(text)) for text in long) == 120
