"""Figures in pieces: nothing is lost or twice, and every piece can be read on a phone."""

import re
from collections import Counter

import numpy as np
import pytest
from matplotlib.figure import Figure

from aggmatch.report.figure import Panel, heat_map, house_style, legend, name_classes, new_figure
from aggmatch.report.pieces import PHONE, Piece, Strip, cut


def in_pieces(figure: Figure) -> list[Strip]:
    return cut(Panel("example", "An example", "A caption.", figure))


def texts(piece: Piece) -> list[str]:
    """Every text in a piece."""
    return re.findall(r"<text [^>]*>([^<]*)</text>", piece.svg)


def height(piece: Piece) -> float:
    """Points."""
    found = re.search(r'<svg [^>]*height="([\d.]+)pt"', piece.svg)
    assert found
    return float(found[1])


@house_style()
def curves(*, shared: bool = False, names: tuple[str, ...] = ()) -> Figure:
    """Three plots side by side, with a legend of these names."""
    figure = new_figure(9.6, 2.7)
    for number, axes in enumerate(figure.subplots(1, 3, sharey=shared)):
        lines = [axes.plot([0, 1], [40, 60 + number])[0] for _ in names or ("line",)]
        axes.set_title(f"title {number}")
    if names:
        legend(figure, dict(zip(names, lines, strict=True)))
    return figure


def test_a_wide_figure_is_cut_between_its_plots():
    (strip,) = in_pieces(curves())
    assert [[text for text in texts(piece) if "title" in text] for piece in strip.pieces] == [
        ["title 0"],
        ["title 1"],
        ["title 2"],
    ]
    assert all(piece.width <= 72 * PHONE for piece in strip.pieces)
    assert strip.width == pytest.approx(72 * 9.6, rel=0.02), "side by side they make the figure again"


def test_a_figure_that_a_phone_shows_whole_is_one_piece():
    figure = new_figure(3.6, 2)
    figure.subplots(1, 3)
    (strip,) = in_pieces(figure)
    assert len(strip.pieces) == 1
    assert strip.width == pytest.approx(72 * 3.6)


def test_values_on_the_left_are_repeated_for_plots_that_share_them():
    own, shared = in_pieces(curves())[0].pieces, in_pieces(curves(shared=True))[0].pieces
    assert [piece.labels for piece in own] == [None, None, None]
    first, second, third = shared
    assert first.labels is None
    assert "50" in texts(first)
    for piece in (second, third):
        assert piece.labels
        assert "50" not in texts(piece)
        assert "50" in texts(piece.labels)
        assert not [text for text in texts(piece.labels) if "title" in text], "only what stands left of the plot"
        assert piece.whole == piece.width + piece.labels.width <= 72 * PHONE
        assert height(piece.labels) == height(piece)


def test_names_of_the_rows_of_maps_are_repeated():
    with house_style():
        figure = new_figure(7.5, 2.5)
        for number, axes in enumerate(figure.subplots(1, 3)):
            heat_map(axes, np.eye(3))
            name_classes(axes, ["cat", "dog", "horse"], y=number == 0)
    _, *others = in_pieces(figure)[0].pieces
    assert others
    for piece in others:
        assert piece.labels
        assert texts(piece.labels) == ["cat", "dog", "horse"]
        assert "<image" not in piece.labels.svg


def test_a_scale_of_colours_stays_with_the_plot_beside_it():
    with house_style():
        figure = new_figure(7.5, 2.5)
        places = figure.subplots(1, 3)
        for axes in places:
            image = heat_map(axes, np.eye(3))
        figure.colorbar(image, ax=places, ticks=[0, 1]).set_ticklabels(["none", "all"])
    pieces = in_pieces(figure)[0].pieces
    assert [{"none", "all"} <= set(texts(piece)) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1].width > 72 * 2


def test_every_name_of_a_legend_is_in_one_piece_and_in_no_plot():
    names = ("aggmatch", "fixmatch", "supervised")
    plots, key = in_pieces(curves(names=names))
    assert [texts(piece) for piece in key.pieces] == [[name] for name in names]
    assert not {text for piece in plots.pieces for text in texts(piece)} & set(names)
    places = [re.findall(r'<path d="M (-?[\d.]+) [^"]*L (-?[\d.]+)', piece.svg) for piece in key.pieces]
    for piece, lines in zip(key.pieces, places, strict=True):
        assert any(0 <= float(start) < float(end) <= piece.width for start, end in lines), "its line is there too"


def test_a_piece_ends_with_its_plots():
    with house_style():
        figure = new_figure(6.4, 4)
        (*_, lower) = figure.subplots(2, 2).flat
        lower.remove()
    tall, short = in_pieces(figure)[0].pieces
    assert height(tall) == pytest.approx(72 * 4)
    assert height(short) < 72 * 2.2


def test_a_single_plot_is_drawn_as_wide_as_a_phone():
    with house_style():
        figure = new_figure(6.4, 3)
        figure.subplots().plot([0, 1])
    (piece,) = in_pieces(figure)[0].pieces
    assert (piece.width, height(piece)) == pytest.approx((72 * PHONE, 72 * 3))


def test_a_single_map_stays_square():
    with house_style():
        figure = new_figure(5, 5)
        heat_map(figure.subplots(), np.eye(3))
    (piece,) = in_pieces(figure)[0].pieces
    assert (piece.width, height(piece)) == pytest.approx((72 * PHONE, 72 * PHONE))


def test_long_names_leave_a_plot_its_room():
    with house_style():
        figure = new_figure(6.4, 3)
        axes = figure.subplots()
        axes.barh([0, 1], [1, 2])
        axes.set_yticks([0, 1], ["a name of a class that is quite long", "b"])
    in_pieces(figure)
    assert axes.bbox.width / figure.dpi == pytest.approx(2.2, abs=0.05)


def test_blocks_are_strips_whose_headings_are_text_of_the_page():
    with house_style():
        figure = new_figure(9.5, 6)
        for number, block in enumerate(figure.subfigures(2, 1, squeeze=False).flat):
            block.suptitle(f"block {number}")
            left, right = block.subfigures(1, 2)
            named, other = left.subplots(1, 2)
            named.set_yticks([0, 1], ["cat", "dog"])
            other.set_yticks([0, 1], ["", ""])
            for axes in right.subplots(2, 4).flat:
                axes.set(xticks=[], yticks=[])
    strips = in_pieces(figure)
    assert [strip.heading for strip in strips] == ["block 0", "block 1"]
    for strip in strips:
        assert not [text for piece in strip.pieces for text in texts(piece) if "block" in text]
        _, chart, *pictures = strip.pieces
        assert chart.labels
        assert texts(chart.labels) == ["cat", "dog"]
        assert [piece.labels for piece in pictures] == [None, None], "names of the chart are none of the pictures"


def test_ids_are_unique_in_all_pieces_together():
    strips = in_pieces(curves(shared=True, names=("a", "b")))
    pieces = [each for strip in strips for piece in strip.pieces for each in (piece, piece.labels) if each]
    ids = Counter(name for piece in pieces for name in re.findall(r'\bid="([^"]*)"', piece.svg))
    assert [name for name, count in ids.items() if count > 1] == []
    assert all(name.startswith("example-") for name in ids)
