"""Plots as files and as parts of a page, readable in light and dark."""

import re
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest

from aggmatch.errors import AggMatchError
from aggmatch.report import figure as module
from aggmatch.report.figure import (
    PHONE,
    Panel,
    Plot,
    each,
    file_bytes,
    files,
    house_style,
    name_classes,
    short,
    slug,
    svg,
)
from aggmatch.report.style import FOREGROUND

XLINK = "{http://www.w3.org/1999/xlink}href"


@house_style()
def example(heading: str = "") -> Plot:
    """A plot with text, lines, clipping, shades and a picture."""
    figure = module.new_figure(3.7, 2)
    lines, shades, image = figure.subplots(1, 3)
    lines.plot([0, 1], [0, 2], label="a line")
    lines.legend()
    module.heat_map(shades, np.eye(3))
    name_classes(shades, ["cat", "dog", "$x$"])
    module.picture(image, np.arange(48, dtype=np.uint8).reshape(3, 4, 4))
    return Plot("", figure, heading)


def element(anchor: str = "example") -> str:
    return svg(example(), anchor, "An <example> & more")


def ids(source: str) -> list[str]:
    return re.findall(r'\bid="([^"]*)"', source)


def texts(source: str) -> set[str | None]:
    return {each.text for each in ElementTree.fromstring(source).iter("{http://www.w3.org/2000/svg}text")}


def half(number: int) -> int | None:
    if number % 2:
        raise AggMatchError(f"{number % 10} is odd.")
    return number // 2 or None


def test_each_makes_what_it_can_and_then_raises_every_reason_once():
    made = each(half, [2, 1, 4, 11, 3, 0])
    assert [next(made), next(made)] == [1, 2]
    with pytest.raises(AggMatchError, match=r"^1 is odd. 3 is odd.$"):
        next(made)


def test_each_leaves_out_none_without_an_error():
    assert list(each(half, [0, 8])) == [4]


def test_each_makes_things_only_when_asked_for():
    assert next(each(half, iter([2, 1]))) == 1


def test_a_plot_wider_than_a_phone_is_an_error():
    Plot("fits", module.new_figure(PHONE, 9))
    with pytest.raises(AggMatchError, match="'wide'"):
        Plot("wide", module.new_figure(PHONE + 0.1, 1))


def test_the_svg_takes_its_foreground_from_the_page():
    source = element()
    assert FOREGROUND not in source
    assert "currentColor" in source
    assert "#ffffff" not in source
    ElementTree.fromstring(source)


def test_the_svg_refers_to_nothing_outside_of_it():
    source = element()
    root = ElementTree.fromstring(source)
    assert "<style" not in source, "a style sheet would reach the whole page"
    assert "data:image/png;base64" in source
    own = {"#" + name for name in ids(source)}
    links = [part.get(XLINK, "") for part in root.iter()]
    assert all(link.startswith("data:") or link in own for link in links if link)
    assert set(re.findall(r"url\((#[^)]*)\)", source)) <= own


def test_text_stays_text_and_dollar_signs_are_no_formulas():
    assert {"a line", "cat", "$x$"} <= texts(element())


def test_plots_of_one_page_share_no_id():
    first, second = ids(element("one")), ids(element("two"))
    assert len(set(first)) == len(first)
    assert not set(first) & set(second)


def test_the_same_figure_gives_the_same_svg():
    assert element() == element()


def test_a_panel_gives_one_file_for_each_plot_named_after_both():
    plots = [Plot(name, example().figure) for name in ("", "average")]
    found = dict(files(Panel("accuracy", "Accuracy", "A caption.", plots), "png"))
    assert list(found) == ["accuracy.png", "accuracy-average.png"]
    assert all(content.startswith(b"\x89PNG") for content in found.values())


def test_files_are_what_their_kind_says():
    assert file_bytes(example(), "A title", "pdf").startswith(b"%PDF")
    alone = file_bytes(example(), "An <example> & more", "svg").decode()
    assert "prefers-color-scheme: dark" in alone
    assert ElementTree.fromstring(alone).get("aria-label") == "An <example> & more"


def test_a_file_has_the_heading_above_the_drawing_and_the_page_has_not():
    heading = " ".join(f"word-{number}" for number in range(20))
    plot = example(heading)
    height = plot.figure.get_figheight()
    before = svg(plot, "a", "A title")
    for _ in range(2):
        words = " ".join(text or "" for text in texts(file_bytes(plot, "A title", "svg").decode()))
        assert all(f"word-{number}" in words for number in range(20))
        assert plot.figure.get_figheight() == height
    assert texts(svg(plot, "a", "A title")) == texts(before)
    assert "word-0" not in before


def test_the_house_style_ends_with_the_drawing():
    before = dict(mpl.rcParams)
    example()
    assert dict(mpl.rcParams) == before


def test_the_house_style_does_not_depend_on_the_users():
    usual = element()
    with mpl.rc_context({"font.size": 20, "lines.marker": "o", "xtick.direction": "in"}):
        assert element() == usual


def height_with_legend(names: list[str]) -> tuple[float, bool]:
    """Height of the axes in pixels, and whether the legend lies within the figure."""
    with house_style():
        figure = module.new_figure(PHONE, 2)
        axes = figure.subplots()
        module.legend(figure, {name: axes.plot([0, 1])[0] for name in names})
        figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    inside = figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
    return float(axes.get_window_extent().height), inside


@pytest.mark.parametrize("name", ["a rather long name", "a name that is far too long for one line of a phone " * 2])
def test_a_long_legend_does_not_take_its_room_from_the_plot(name):
    one, _ = height_with_legend(["short"])
    many, inside = height_with_legend([f"{number} {name}" for number in range(6)])
    assert many == pytest.approx(one, rel=0.06)
    assert inside


def test_a_name_becomes_part_of_a_file_name():
    assert slug("AggMatch, 25 % noise, fold 0") == "aggmatch-25-noise-fold-0"
    long = ["x" * 500 + end for end in "ab"]
    assert len({slug(text) for text in long}) == 2
    assert max(len(slug(text)) for text in long) == 120


def test_a_long_name_is_cut():
    assert short("automobile") == "automobile"
    assert short("a very long class", 6) == "a ver…"
