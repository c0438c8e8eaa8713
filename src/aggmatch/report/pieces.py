"""Figures cut into pieces that stand side by side in a wide window and below each other on a phone.

A figure is cut between the columns of its plots. Each piece is a drawing of its own, as wide as a phone at most, so
that text keeps its size. Where the rows of a figure are named on its left only, pieces further right have these names
too, to be shown where they do not stand beside the first. Headings of blocks become text of the page, and the columns
of a legend are pieces of their own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from aggmatch.report.figure import Panel, house_style, svg

PHONE = 3.75
"""Inches across which a phone shows a figure in its own size."""
LEAST = 2.2
"""Inches of a single plot itself that are kept, however long the names beside it are."""
PAD = 0.04
"""Inches around what is cut out."""


@dataclass(frozen=True)
class Piece:
    """A part of a figure."""

    svg: str
    width: float
    """Points."""
    labels: "Piece | None" = None
    """Names of its rows, where they stand left of another piece."""

    @property
    def whole(self) -> float:
        """Points, with the labels."""
        return self.width + (self.labels.width if self.labels else 0)


@dataclass(frozen=True)
class Strip:
    """Pieces that make a row."""

    heading: str
    pieces: list[Piece]

    @property
    def width(self) -> float:
        """Points, with everything side by side."""
        return sum(piece.width for piece in self.pieces)


@dataclass(frozen=True)
class Column:
    """Plots that stand below each other. All measures are inches from the lower left corner of the figure."""

    axes: list[Axes]
    left: float
    """With everything that belongs to the plots."""
    right: float
    low: float
    edge: float
    """Where the plots themselves begin."""
    named: bool
    """Whether names of rows or values stand left of that."""


@dataclass(frozen=True)
class Row:
    """A block of a figure."""

    heading: str
    columns: list[Column]
    low: float
    high: float


def cut(panel: Panel) -> list[Strip]:
    """The strips of a panel's figure from top to bottom, its legend last. The figure itself is used up."""
    figure = panel.figure
    with house_style():
        figure.draw_without_rendering()
        if len(figure.axes) == 1:
            narrow(figure, figure.axes[0])
        figure.set_layout_engine("none")  # things stay where they are while others are hidden
        strips = [
            Strip(row.heading, list(cut_row(replace(panel, name=f"{panel.name}-{number}"), row)))
            for number, row in enumerate(list(rows(figure)))  # measured before anything is hidden
        ]
        return strips + [Strip("", list(cut_legend(panel, legend))) for legend in figure.legends]


def narrow(figure: Figure, axes: Axes) -> None:
    """Lay a figure of a single plot out anew, no wider than a phone where names leave room; a square plot stays one."""
    width, height = figure.get_size_inches()
    narrower = max(PHONE, width - axes.bbox.width / figure.dpi + LEAST)
    if narrower < width:
        figure.set_size_inches(narrower, height * narrower / width if axes.get_aspect() == 1 else height)
        figure.draw_without_rendering()


def rows(figure: Figure) -> Iterator[Row]:
    """Blocks of a figure, from top to bottom."""
    width, height = figure.get_size_inches()
    if not figure.subfigs:
        below = max((inches(legend).y1 for legend in figure.legends), default=0.0)
        yield Row("", columns([each for each in figure.axes if each.get_visible()], width), below, height)
    for block in figure.subfigs:
        axes = [each for each in figure.axes if block.bbox.y0 <= (each.bbox.y0 + each.bbox.y1) / 2 < block.bbox.y1]
        bounds = Bbox.union([inches(each) for each in axes])
        yield Row(block.get_suptitle(), columns(axes, width), bounds.y0 - PAD, bounds.y1 + PAD)
        block.suptitle("")  # the page sets it, in lines as long as the window is wide


def inches(artist: Artist) -> Bbox:
    """Where something stands in its figure, with all that belongs to it."""
    bounds, figure = artist.get_tightbbox(), artist.figure
    assert bounds is not None
    assert figure is not None
    return Bbox(bounds.get_points() / figure.dpi)


def draw(panel: Panel, shown: Sequence[Artist], box: Bbox) -> Piece:
    """What lies in a box; of plots and legends only those named."""
    for each in (*panel.figure.axes, *panel.figure.legends):
        each.set_visible(each in shown)
    return Piece(svg(panel, box), 72 * box.width)


# Columns ----------------------------------------------------------------------------------------------------------


def columns(axes: Sequence[Axes], width: float) -> list[Column]:
    """Plots by columns, from left to right, which take up all of the width; a scale of colours is no column."""
    stacks: list[list[Axes]] = []
    for each in sorted(axes, key=lambda each: float(each.bbox.x0)):
        if stacks and (each.bbox.x0 < max(other.bbox.x1 for other in stacks[-1]) or each.get_label() == "<colorbar>"):
            stacks[-1].append(each)
        else:
            stacks.append([each])
    bounds = [Bbox.union([inches(each) for each in stack]) for stack in stacks]
    middles = [(first.x1 + second.x0) / 2 for first, second in pairwise(bounds)]
    return [
        Column(
            axes=stack,
            left=min(start, bound.x0 - PAD),
            right=max(end, bound.x1 + PAD),
            low=bound.y0 - PAD,
            edge=min(each.bbox.x0 for each in stack) / stack[0].figure.dpi,
            named=any(map(named, stack)),
        )
        for stack, bound, start, end in zip(stacks, bounds, [0.0, *middles], [*middles, width], strict=True)
    ]


def named(axes: Axes) -> bool:
    """Whether any words stand left of a plot."""
    texts: list[Text] = [axes.yaxis.label, *axes.get_yticklabels(), *axes.texts]
    return any(text.get_text().strip() and text.get_window_extent().x1 <= axes.bbox.x0 for text in texts)


def cut_row(panel: Panel, row: Row) -> Iterator[Piece]:
    """As many columns as a phone is wide in each piece; those of different blocks apart."""
    lowest = min(column.low for column in row.columns)
    for number, (group, source) in enumerate(spread(row.columns)):
        part = replace(panel, name=f"{panel.name}-{number}")
        low = min(column.low for column in group)
        low = low if low > lowest + PAD else row.low  # what stands below all plots, below these too
        box = Bbox.from_extents(group[0].left, low, group[-1].right, row.high)
        piece = draw(part, [each for column in group for each in column.axes], box)
        if source:
            box = Bbox.from_extents(source.left, low, source.edge, row.high)
            piece = replace(piece, labels=draw_labels(replace(part, name=f"{part.name}-labels"), source, box))
        yield piece


def draw_labels(panel: Panel, column: Column, box: Bbox) -> Piece:
    """What stands left of plots that have been drawn already."""
    for axes in column.axes:
        for artist in axes.get_children():
            artist.set_visible(artist is axes.yaxis or artist in axes.texts)
    return draw(panel, column.axes, box)


def spread(found: Sequence[Column]) -> Iterator[tuple[list[Column], Column | None]]:
    """Groups of columns no wider than a phone, and for each the column whose labels it needs too, if any."""
    for _, members in groupby(found, key=lambda column: column.axes[0].figure):
        block = list(members)
        for count in range(1, len(block) + 1):
            starts = [number * len(block) // count for number in range(count + 1)]
            groups = [(block[low:high], labels_before(block, low)) for low, high in pairwise(starts)]
            if all(breadth(*group) <= PHONE for group in groups):
                break
        yield from groups


def labels_before(block: Sequence[Column], start: int) -> Column | None:
    """The column on the left that names the rows of a column which does not itself."""
    if block[start].named:
        return None
    return next((column for column in reversed(block[:start]) if column.named), None)


def breadth(group: Sequence[Column], source: Column | None) -> float:
    """Inches across columns with the labels that they need."""
    return group[-1].right - group[0].left + (source.edge - source.left if source else 0)


# Legend -----------------------------------------------------------------------------------------------------------


def cut_legend(panel: Panel, legend: Legend) -> Iterator[Piece]:
    """A piece for each column of a legend."""
    figure, bounds = panel.figure, inches(legend)
    legend.set_bbox_to_anchor((0, 0, 1, 1), figure.transFigure)  # by default it moves with what is cut out
    texts = legend.get_texts()
    stacks = {x: list(members) for x, members in groupby(range(len(texts)), lambda n: texts[n].get_window_extent().x0)}
    handle = (legend.handlelength + legend.handletextpad) * float(texts[0].get_fontsize()) / 72
    starts = [x / figure.dpi - handle - PAD for x in stacks]
    for number, (chosen, (left, right)) in enumerate(zip(stacks.values(), pairwise([*starts, bounds.x1]), strict=True)):
        for place, artists in enumerate(zip(texts, legend.legend_handles, strict=True)):
            for artist in filter(None, artists):
                artist.set_visible(place in chosen)
        box = Bbox.from_extents(left, bounds.y0, right, bounds.y1)
        yield draw(replace(panel, name=f"{panel.name}-legend-{number}"), [legend], box)
