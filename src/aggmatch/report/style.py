"""How the report looks: every colour, line and mark of its figures.

Change the colour of a method in `METHOD_COLORS`, those of right and wrong in `RIGHT` and `WRONG`, those of classes in
`CLASS_COLORS`, and fonts and line widths in `STYLE`. The page itself takes its colours from `templates/report.css`.

Figures are drawn once and shown on a light and on a dark page. So nothing has a background, and colours of data
contrast with black and with white. Everything else has the colour `FOREGROUND`, which becomes the text colour of the
page in SVG.
"""

from typing import Any

FOREGROUND = "#010203"
"""Text, axes and marks: a black that nothing else uses, so that it can be found and replaced in the SVG."""
FAINT = 0.15
"""Opacity of grid lines."""

BLUE, ORANGE, TEAL, RED, PURPLE, BROWN = "#2878d0", "#e0701a", "#12967a", "#d6402b", "#9467bd", "#a5603c"
PINK, GREY, GOLD, CYAN, OLIVE, GREEN = "#cf5f9f", "#8a8a8a", "#b08a00", "#1fa3b8", "#6f9a1c", "#1a9850"

ACCENT = BLUE
"""Quantities that belong to no method."""
RIGHT, WRONG, NEUTRAL = GREEN, RED, GREY
"""Right answers, mistakes, everything else. Colour is never the only sign."""
METHOD_COLORS = {
    "aggmatch": (BLUE, "#6b93d7", "#2168b5"),
    "fixmatch": (ORANGE, "#a35010", "#c26015"),
    "fixmatch_da": ("#b34fc4", "#c173cf", "#a03bb2"),
    "shrinkmatch": ("#7a8f1f", "#839821", "#68791a"),
    "flexmatch": ("#cc4f83", "#d56e99", "#bc376f"),
    "freematch": ("#8a68d3", "#9c80da", "#7952cd"),
    "softmatch": ("#148c68", "#17a279", "#11795a"),
    "comatch": ("#a1732f", "#ba8536", "#8a6328"),
    "simmatch": ("#4b839b", "#5c97b0", "#407185"),
    "featmatch": (TEAL, "#0b755e", "#50a18a"),
    "paws": (PURPLE, "#a585c6", "#7c56a0"),
    "uda": (PINK, "#a0487a", "#d374a8"),
    "mixmatch": (GOLD, "#7f6300", "#997700"),
    "mean_teacher": (CYAN, "#127180", "#188899"),
    "pi_model": (OLIVE, "#507112", "#618717"),
    "pseudo_label": (BROWN, "#b68878", "#aa6d51"),
    "supervised": (GREY, "#676767", "#7c7c7c"),
}
"""Three shades per method, the same in every figure: the first for its first variant, the others for later variants.

Blue and orange, compared most often, differ for color-blind readers too. Every shade contrasts with both pages.
"""
OTHER_COLORS = (
    ("#5b6ee1", "#808ce5", "#4d5ec2"),
    ("#c0504d", "#ca7e7d", "#ab4644"),
    ("#4f9d69", "#38734b", "#44895b"),
    ("#a87ca0", "#7e5c78", "#976f90"),
)
"""Shades of all other methods."""
CLASS_COLORS = (BLUE, ORANGE, TEAL, RED, PURPLE, BROWN, PINK, GREY, GOLD, CYAN)
"""Colours of classes; they repeat if there are more."""
CLASS_MARKS = "o^"
"""Marks of classes: the second one for classes whose colour is a repetition."""
LINES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
"""Line styles of the variants of one method."""
MARKS = "osD^vP<>"
"""Marks of groups of runs."""

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
"""The house style: settings of matplotlib."""
PAGE_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, 'DejaVu Sans', sans-serif"
THEMES = "<style>:root { color: #1a1a1a } @media (prefers-color-scheme: dark) { :root { color: #e6e6e6 } }</style>"
"""Foreground of an SVG that is a file of its own."""
