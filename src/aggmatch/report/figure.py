"""What a figure is made of: plots with their words, helpers to draw them, and their form as SVG, PNG or PDF."""

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from textwrap import wrap
from typing import Any, NamedTuple, TypeVar
from unicodedata import east_asian_width
from warnings import catch_warnings, filterwarnings
from zlib import crc32

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, PowerNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from aggmatch.data import is_own_images
from aggmatch.data.images import UNKNOWN
from aggmatch.errors import AggMatchError
from aggmatch.report.style import (
    ACCENT,
    CLASS_COLORS,
    CLASS_MARKS,
    FOREGROUND,
    LINES,
    MARKS,
    METHOD_COLORS,
    NEUTRAL,
    OTHER_COLORS,
    PAGE_FONT,
    RIGHT,
    STYLE,
    THEMES,
    WRONG,
)
from aggmatch.runs.stats import conditions, grouped
from aggmatch.runs.stored import StoredRun

PHONE = 3.75
"""Inches that a phone shows without scaling: no plot is wider."""
LETTER = 0.075
"""Approximate width in inches of a letter in a legend or heading."""
MANY = 20
"""More classes than this are not named one by one."""
LINE = 1.15
"""Height of a line of text in sizes of its letters."""
SMALLEST = 4.5
"""Smallest size of letters in points that can be read."""
LONGEST = 120
"""Characters of a slug; file systems allow twice as many in a name."""

CONFUSED_PAIRS = (("cat", "dog"), ("deer", "horse"), ("airplane", "bird"), ("automobile", "truck"))
"""Classes that the paper names as often confused."""
BARS = 10
"""Most classes in a bar chart: of more, those with the largest probabilities."""

Thing = TypeVar("Thing")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Plot:
    """One drawing, at most `PHONE` wide, with everything a reader needs to understand it alone.

    Example: `Plot("average", figure, heading="digits, 40 labels")`.
    """

    name: str
    """What distinguishes it from the other plots of its panel, such as "average"; empty if it is the only one."""
    figure: Figure
    heading: str = ""
    """Text above it. The page breaks it into lines; a file has it in the drawing."""

    def __post_init__(self) -> None:
        width = self.figure.get_figwidth()
        if width > PHONE:
            raise AggMatchError(f"Plot '{self.name}' is {width:g} inches wide; it must fit a phone: {PHONE} at most.")


@dataclass(frozen=True)
class Panel:
    """Plots that belong together, and the words around them."""

    name: str
    """File name and anchor, such as "accuracy"."""
    title: str
    caption: str
    """What is shown: data set, labels, fold, step, network, number of images; never more than was measured."""
    plots: Sequence[Plot]


def each(make: Callable[[Thing], Made | None], things: Iterable[Thing]) -> Iterator[Made]:
    """Yield what `make` makes of each thing, then raise the reasons for what it could not make as one error.

    make: returns None if there is nothing to make, and raises an `AggMatchError` if it cannot make something.
    """
    reasons: dict[str, None] = {}
    for thing in things:
        try:
            made = make(thing)
        except AggMatchError as error:
            reasons[str(error)] = None
        else:
            if made is not None:
                yield made
    if reasons:
        raise AggMatchError(" ".join(reasons))


# Drawing ----------------------------------------------------------------------------------------------------------


@contextmanager
def house_style() -> Iterator[None]:
    """Within, matplotlib draws in the house style; also a decorator of functions that draw.

    Characters that the font lacks cause no warnings: in an SVG they stay text, and a browser finds another font.
    """
    with style.context(["default", STYLE]), catch_warnings():
        filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, its size in inches. Call it and draw on it within `house_style`."""
    return Figure(figsize=(width, height))


def heat_map(axes: Axes, values: np.ndarray[Any, Any], color: str = ACCENT, power: float = 1.0) -> AxesImage:
    """Draw a matrix of shares in [0, 1] as squares. The opacity is share ** power, so 0 shows the page itself."""
    red, green, blue = to_rgb(color)
    shades = ListedColormap([(red, green, blue, opacity) for opacity in np.linspace(0, 1, 256)])
    image = axes.imshow(values, cmap=shades, norm=PowerNorm(power, 0, 1))
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set(visible=True, alpha=0.3)
    return image


def picture(axes: Axes, pixels: np.ndarray[Any, Any], color: str = FOREGROUND, width: float = 0.7) -> None:
    """Draw an image (C, H, W) with values from 0 to 255, in a frame."""
    shown = pixels.transpose(1, 2, 0)
    axes.imshow(shown[..., 0] if shown.shape[-1] == 1 else shown, cmap="gray", vmin=0, vmax=255)
    axes.grid(visible=False)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(visible=True, color=color, linewidth=width)


def legend(figure: Figure, handles: Mapping[str, Any]) -> None:
    """Draw a legend below the figure in as many columns as fit. The figure grows by each line after the first."""
    width = figure.get_figwidth()
    names = ["\n".join(wrap(name, int((width - 0.6) / LETTER))) for name in handles]
    longest = max((len(line) for name in names for line in name.split("\n")), default=0)
    columns = max(int(width / (0.5 + LETTER * longest)), 1)
    rows, wrapped = -(-len(names) // columns), sum(name.count("\n") for name in names)
    figure.set_figheight(figure.get_figheight() + 0.19 * (rows - 1) + 0.165 * wrapped)
    figure.legend(list(handles.values()), names, loc="outside lower center", ncols=columns)


def short(name: str, letters: int = 14) -> str:
    """A name, cut if it is too long for its place; letters of East Asia are twice as wide."""
    if sum(map(letter_width, name)) <= letters:
        return name
    widths = accumulate(map(letter_width, name))
    return f"{name[: sum(width < letters for width in widths)]}…"


def letter_width(letter: str) -> int:
    """The width of a letter in ordinary letters: 1 or 2."""
    return 2 if east_asian_width(letter) in "WF" else 1


def short_names(names: Sequence[str], letters: int = 14) -> list[str]:
    """Cut names that still differ: names that would be cut to the same text lose their middle instead of their end."""
    cut = [short(name, letters) for name in names]
    taken = Counter(cut)
    half = letters // 2
    return [
        f"{short(name, half).removesuffix('…')}…{name[-(letters - half - 1) :]}" if taken[brief] > 1 else brief
        for name, brief in zip(names, cut, strict=True)
    ]


# Runs and classes ---------------------------------------------------------------------------------------------------


def method_colors(method: str) -> tuple[str, str, str]:
    """The shades of a method, always the same ones."""
    return METHOD_COLORS.get(method) or OTHER_COLORS[crc32(method.encode()) % len(OTHER_COLORS)]


def class_color(number: int) -> str:
    """The colour of a class."""
    return CLASS_COLORS[number % len(CLASS_COLORS)]


def class_mark(number: int) -> str:
    """The mark of a class."""
    return CLASS_MARKS[number // len(CLASS_COLORS) % len(CLASS_MARKS)]


class Look(NamedTuple):
    """How a run is drawn."""

    color: str
    line: Any
    mark: str


def looks(runs: Sequence[StoredRun]) -> dict[StoredRun, Look]:
    """The look of each run. Runs of one group look the same under every condition.

    The first variant of a method has the method's own colour and a solid line; further ones have other shades of it,
    other lines and other marks.
    """
    found: dict[StoredRun, Look] = {}
    groups: dict[str, Look] = {}
    variants: Counter[str] = Counter()
    for part in conditions(runs).values():
        for name, group in grouped(part).items():
            method = group[0].method
            if name not in groups:
                colors, number = method_colors(method), variants[method]
                mark = MARKS[len(groups) % len(MARKS)]
                groups[name] = Look(colors[number % len(colors)], LINES[number % len(LINES)], mark)
                variants[method] += 1
            found |= dict.fromkeys(group, groups[name])
    return found


def pairs_among(classes: Sequence[str]) -> list[tuple[int, int]]:
    """Numbers of both classes of each confused pair that the data set has."""
    return [
        (classes.index(first), classes.index(second))
        for first, second in CONFUSED_PAIRS
        if first in classes and second in classes
    ]


def pairs_of(run: StoredRun, classes: Sequence[str]) -> list[tuple[int, int]]:
    """Confused pairs that the data set of a run has; none on images of your own, which the paper does not know."""
    return [] if is_own_images(run.settings.data.name) else pairs_among(classes)


def name_classes(axes: Axes, classes: Sequence[str], side: float = 2.0) -> None:
    """Write the names of the classes along two sides of a heat map, unless there are too many to read.

    side: approximate height and width of the map in inches. Letters are small enough that names do not overlap.
    """
    size = min(72 * side / len(classes) / LINE, 8)
    names = short_names(classes) if len(classes) <= MANY and size >= SMALLEST else []
    turned: dict[str, Any] = {"rotation": 90} if max(map(len, classes)) > 2 else {}
    axes.set_xticks(range(len(names)), names, size=size, **turned)
    axes.set_yticks(range(len(names)), names, size=size)


def shown_classes(distributions: Sequence[NDArray[np.float32]], truth: int) -> list[int]:
    """Classes to draw bars for: all if they are few, else those with the largest probabilities and the true one."""
    largest = np.maximum.reduce(list(distributions))
    ranked = sorted(range(len(largest)), key=lambda number: (number != truth, -largest[number]))
    return sorted(ranked[:BARS])


def draw_distributions(
    row: Sequence[Axes], distributions: Sequence[NDArray[np.float32]], truth: int, classes: Sequence[str]
) -> None:
    """Draw class distributions as bar charts that share their rows; names are left of the first chart.

    The true class is green and has a dotted line, a wrong favourite is red.
    """
    shown = shown_classes(distributions, truth)
    for axes, probs in zip(row, distributions, strict=True):
        favorite = {int(probs.argmax()): ACCENT if truth == UNKNOWN else WRONG}
        colors = [RIGHT if number == truth else favorite.get(number, NEUTRAL) for number in shown]
        axes.barh(range(len(shown)), probs[shown], color=colors)
        names = short_names([classes[number] for number in shown]) if axes is row[0] else []
        axes.set_yticks(range(len(names)), names, size=7 if len(names) < BARS else 6)
        axes.set(xlim=(0, 1), xticks=[], ylim=(len(shown) - 0.5, -0.5))
        if truth != UNKNOWN:
            axes.axhline(shown.index(truth), color=FOREGROUND, linewidth=0.6, alpha=0.5, linestyle=(0, (1, 2)))
        axes.tick_params(length=0)
        axes.grid(visible=False)


# Files ------------------------------------------------------------------------------------------------------------


def svg(plot: Plot, anchor: str, title: str) -> str:
    """Return a plot as an SVG element: no background, the colours of the page, ids that start with the anchor."""
    buffer = io.StringIO()
    with house_style():
        plot.figure.savefig(buffer, format="svg", metadata={"Date": None})
    return inline(buffer.getvalue(), anchor, title)


def inline(source: str, anchor: str, title: str) -> str:
    """Matplotlib's SVG file as an element of a page."""
    element = source[source.index("<svg") :].strip()
    element = re.sub(r"<metadata>.*?</metadata>\s*|<style .*?</style>", "", element, flags=re.DOTALL)
    element = re.sub(r'(<image [^>]*?) id="[^"]*"', r"\1", element)  # a picture shown twice has its id twice
    element = re.sub(r'\bid="', f'id="{anchor}-', element)
    element = re.sub(r'(url\(#|xlink:href="#)', rf"\g<1>{anchor}-", element)
    element = element.replace(FOREGROUND, "currentColor").replace("'DejaVu Sans'", PAGE_FONT)
    strokes = "stroke-linejoin: round; stroke-linecap: butt"  # on the element: a style sheet would reach the whole page
    return element.replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" style="{strokes}" ', 1)


def files(panel: Panel, kind: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of a file for each plot.

    kind: `svg`, `png` or `pdf`; the last two have a white background.

    Example: `for name, content in files(panel, "png"): Path(name).write_bytes(content)`.
    """
    for plot in panel.plots:
        name = f"{panel.name}-{plot.name}" if plot.name else panel.name
        yield f"{name}.{kind}", file_bytes(plot, panel.title, kind)


def file_bytes(plot: Plot, title: str, kind: str) -> bytes:
    """The content of a file that holds a plot under its heading."""
    with house_style(), heading_drawn(plot):
        if kind == "svg":
            head, rest = svg(plot, "plot", title).split(">", 1)
            return f'<?xml version="1.0" encoding="utf-8"?>\n{head}>{THEMES}{rest}\n'.encode()
        buffer = io.BytesIO()
        plot.figure.savefig(buffer, format=kind, dpi=200, facecolor="white")
        return buffer.getvalue()


@contextmanager
def heading_drawn(plot: Plot) -> Iterator[None]:
    """Within, the figure is higher by its heading, which is drawn at the top."""
    figure, height = plot.figure, plot.figure.get_figheight()
    lines = wrap(plot.heading, int(figure.get_figwidth() / LETTER))
    if not lines:
        yield
        return
    figure.set_figheight(height + 0.16 * len(lines) + 0.08)
    text = figure.suptitle("\n".join(lines), x=0.02, ha="left", size=9, in_layout=True)
    yield
    text.set(text="", in_layout=False)
    figure.set_figheight(height)


def slug(text: str) -> str:
    """A text as part of a file name and anchor; a long one is cut and ends with a checksum."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return plain if len(plain) <= LONGEST else f"{plain[: LONGEST - 9]}-{crc32(text.encode()):08x}"
