"""A figure with its words, the house style of all figures, and their form as SVG, PNG or PDF.

Figures are drawn once and read in a light and a dark page alike: nothing has a background, everything that is not data
is drawn in `FOREGROUND`, which becomes `currentColor` in SVG, and the colours of data stand off from black and white.
"""

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any
from zlib import crc32

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, PowerNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

FOREGROUND = "#010203"
"""Text, axes and marks: a black that nothing else uses, so that it can be found again in the SVG."""
FAINT = 0.15
"""Opacity of grid lines."""

BLUE, ORANGE, TEAL, RED, PURPLE, BROWN = "#2878d0", "#e0701a", "#12967a", "#d6402b", "#9467bd", "#a5603c"
PINK, GREY, GOLD, CYAN, OLIVE, GREEN = "#cf5f9f", "#8a8a8a", "#b08a00", "#1fa3b8", "#6f9a1c", "#1a9850"

ACCENT = BLUE
"""Colour of a quantity that belongs to no method."""
RIGHT, WRONG, NEUTRAL = GREEN, RED, GREY
"""Right answers, mistakes, everything else. Never told apart by colour alone."""
METHOD_COLORS = {
    "aggmatch": BLUE,
    "fixmatch": ORANGE,
    "featmatch": TEAL,
    "paws": PURPLE,
    "uda": PINK,
    "mixmatch": GOLD,
    "mean_teacher": CYAN,
    "pi_model": OLIVE,
    "pseudo_label": BROWN,
    "supervised": GREY,
}
"""One colour a method, in every figure. AggMatch and FixMatch, compared most often, differ for everyone."""
OTHER_COLORS = ("#5b6ee1", "#c0504d", "#4f9d69", "#a87ca0")
"""Colours of methods from elsewhere."""
CLASS_COLORS = (BLUE, ORANGE, TEAL, RED, PURPLE, BROWN, PINK, GREY, GOLD, CYAN)
"""Colours of classes, repeated where there are more."""
LINES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
"""Line styles that tell groups of runs of one method apart."""

PHONE = 3.75
"""Inches across which a phone shows a plot in its own size: no plot is wider."""
LONGEST = 120
"""Characters in a slug; file systems allow twice as many in a name."""
MANY = 20
"""More classes than this are not named or numbered one by one."""

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.labelcolor": FOREGROUND,
    "text.color": FOREGROUND,
    "axes.edgecolor": FOREGROUND,
    "axes.labelcolor": FOREGROUND,
    "axes.titlecolor": FOREGROUND,
    "xtick.color": FOREGROUND,
    "ytick.color": FOREGROUND,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FOREGROUND,
    "grid.alpha": FAINT,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "figure.constrained_layout.use": True,
    "image.interpolation": "none",
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "aggmatch",  # the same figure gives the same file
    "text.parse_math": False,  # a dollar sign in a class name is a dollar sign
}
"""The house style."""

PAGE_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, 'DejaVu Sans', sans-serif"
THEMES = "<style>:root { color: #1a1a1a } @media (prefers-color-scheme: dark) { :root { color: #e6e6e6 } }</style>"
"""Foreground of an SVG that stands alone in its file."""


@dataclass(frozen=True)
class Plot:
    """One drawing, at most `PHONE` wide, with everything a reader needs to understand it alone."""

    name: str
    """What tells it from the other plots of its panel, such as "average"; empty if it is the only one."""
    figure: Figure
    heading: str = ""
    """Text above it, which the page sets in its own lines."""


@dataclass(frozen=True)
class Panel:
    """Plots that belong together, and the words around them."""

    name: str
    """File name and anchor, such as "accuracy"."""
    title: str
    caption: str
    """What is shown: data set, labels, fold, step, network, number of images; never more than was measured."""
    plots: Sequence[Plot]


# Drawing ----------------------------------------------------------------------------------------------------------


@contextmanager
def house_style() -> Iterator[None]:
    """Within, matplotlib draws in the house style.

    It keeps quiet about characters that its font lacks: in an SVG they stay text, and a browser finds another font.
    """
    with style.context(["default", STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches; to be called and drawn on within `house_style`."""
    return Figure(figsize=(width, height))


def method_color(method: str) -> str:
    """The colour of a method, always the same."""
    return METHOD_COLORS.get(method) or OTHER_COLORS[crc32(method.encode()) % len(OTHER_COLORS)]


def class_color(number: int) -> str:
    """The colour of a class."""
    return CLASS_COLORS[number % len(CLASS_COLORS)]


def shades(color: str) -> ListedColormap:
    """A map from nothing at all to a colour: 0 shows the page, light or dark, through it."""
    red, green, blue = to_rgb(color)
    return ListedColormap([(red, green, blue, opacity) for opacity in np.linspace(0, 1, 256)])


def heat_map(axes: Axes, values: np.ndarray[Any, Any], color: str = ACCENT, power: float = 1.0) -> AxesImage:
    """A matrix of shares as squares; the share raised to a power is the opacity."""
    image = axes.imshow(values, cmap=shades(color), norm=PowerNorm(power, 0, 1))
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set(visible=True, alpha=0.3)
    return image


def legend(figure: Figure, handles: Mapping[str, Any]) -> None:
    """Names of what is drawn, in as many columns as fit below the figure, which grows by every further line of them."""
    longest = max(map(len, handles), default=0)
    columns = max(int(figure.get_figwidth() / (0.5 + 0.075 * longest)), 1)  # inches of a handle and of a character
    figure.set_figheight(figure.get_figheight() + 0.19 * ((len(handles) - 1) // columns))
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=columns)


def name_classes(axes: Axes, classes: Sequence[str], *, x: bool = True, y: bool = True) -> None:
    """Names of the classes along the sides of a heat map, unless there are many."""
    places = range(len(classes)) if len(classes) <= MANY else []
    names = list(classes) if places else []
    long = max(map(len, classes)) > 2
    turned: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if long else {}
    axes.set_xticks(places, names if x else [""] * len(names), **turned)
    axes.set_yticks(places, names if y else [""] * len(names))


def picture(axes: Axes, pixels: np.ndarray[Any, Any], color: str = FOREGROUND, width: float = 0.7) -> None:
    """An image (C, H, W) of grey levels 0 to 255 in a frame."""
    shown = pixels.transpose(1, 2, 0)
    axes.imshow(shown[..., 0] if shown.shape[-1] == 1 else shown, cmap="gray", vmin=0, vmax=255)
    axes.grid(visible=False)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(visible=True, color=color, linewidth=width)


# Files ------------------------------------------------------------------------------------------------------------


def svg(plot: Plot, anchor: str, title: str) -> str:
    """A plot as inline SVG: no background, the colours of the page, ids that start with the anchor."""
    buffer = io.StringIO()
    with house_style():
        plot.figure.savefig(buffer, format="svg", metadata={"Date": None})
    return inline(buffer.getvalue(), anchor, title)


def inline(source: str, name: str, title: str) -> str:
    """Matplotlib's SVG file as an element of a page."""
    element = source[source.index("<svg") :].strip()
    element = re.sub(r"<metadata>.*?</metadata>\s*|<style .*?</style>", "", element, flags=re.DOTALL)
    element = re.sub(r'(<image [^>]*?) id="[^"]*"', r"\1", element)  # a picture shown twice has its id twice
    element = re.sub(r'\bid="', f'id="{name}-', element)
    element = re.sub(r'(url\(#|xlink:href="#)', rf"\g<1>{name}-", element)
    element = element.replace(FOREGROUND, "currentColor").replace("'DejaVu Sans'", PAGE_FONT)
    strokes = "stroke-linejoin: round; stroke-linecap: butt"  # on the element: a style sheet would reach the whole page
    return element.replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" style="{strokes}" ', 1)


def files(panel: Panel, kind: str) -> Iterator[tuple[str, bytes]]:
    """Name and content of an `svg`, `png` or `pdf` file for each plot; on white if the format has no themes."""
    for plot in panel.plots:
        name = f"{panel.name}-{plot.name}" if plot.name else panel.name
        yield f"{name}.{kind}", file_bytes(plot, panel.title, kind)


def file_bytes(plot: Plot, title: str, kind: str) -> bytes:
    """The content of a file that holds a plot."""
    if kind == "svg":
        head, rest = svg(plot, "plot", title).split(">", 1)
        return f'<?xml version="1.0" encoding="utf-8"?>\n{head}>{THEMES}{rest}\n'.encode()
    buffer = io.BytesIO()
    with house_style():
        plot.figure.savefig(buffer, format=kind, dpi=200, facecolor="white")
    return buffer.getvalue()


def slug(text: str) -> str:
    """A text as part of a file name and anchor; a long one is cut and told from others by a checksum."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return plain if len(plain) <= LONGEST else f"{plain[: LONGEST - 9]}-{crc32(text.encode()):08x}"
