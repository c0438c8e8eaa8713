"""The tables of the AggMatch paper as data: for each cell, the settings of its runs and the paper's number.

Numbers are written as the paper prints them, one text per row. A dash stands for a number that the paper does not
print; such a cell can still be trained.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aggmatch.errors import unknown

STEPS = 2**20
"""K: number of steps in the literature, which the paper follows without stating it."""


@dataclass(frozen=True)
class Figure:
    """Accuracy in percent as the paper prints it, with or without a deviation: `92.54±0.76`, `92.09`."""

    text: str

    @property
    def mean(self) -> float:
        """Its mean over the paper's folds."""
        return float(self.text.partition("±")[0])

    @property
    def std(self) -> float | None:
        """Its standard deviation; None if the paper prints none."""
        _, sign, std = self.text.partition("±")
        return float(std) if sign else None

    @property
    def digits(self) -> int:
        """Digits after the point; our numbers are shown with as many."""
        return len(self.text.partition("±")[0].partition(".")[2])


def printed(text: str) -> Figure | None:
    """A number of a row; None for a dash."""
    return None if text == "–" else Figure(text)


@dataclass(frozen=True)
class Cell:
    """One number of a table: its place, the settings of its runs, and the paper's value."""

    row: str
    column: str
    settings: Mapping[str, Any]
    """Dotted, as in --set. The table adds folds and number of steps."""
    paper: Figure | None = None
    of_class: str | None = None
    """Class whose accuracy it is; None for the accuracy on all classes."""


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    corner: str = "method"
    """What the rows list."""
    across: str = "data, labels"
    """What the columns list."""
    folds: int = 3
    steps: int = STEPS
    note: str = ""
    """What a reader must know about the paper's numbers."""

    @property
    def heading(self) -> str:
        """Name and title in one line."""
        return f"{self.name}: {self.title}"

    @property
    def rows(self) -> list[str]:
        """Names of the rows, in order."""
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in order."""
        return list(dict.fromkeys(cell.column for cell in self.cells))


def grid(
    columns: Mapping[str, Mapping[str, Any]], rows: Mapping[str, tuple[Mapping[str, Any], str]]
) -> tuple[Cell, ...]:
    """Cells with the settings of their column and of their row; a row is (settings, the paper's numbers)."""
    return tuple(
        Cell(row, column, {**shared, **own}, printed(figure))
        for row, (own, figures) in rows.items()
        for (column, shared), figure in zip(columns.items(), figures.split(), strict=True)
    )


def by_class(classes: Iterable[str], rows: Mapping[str, tuple[Mapping[str, Any], str]]) -> tuple[Cell, ...]:
    """Cells of one run per row: its accuracy in each class and, last, in all classes."""
    return tuple(
        Cell(row, of_class or "all", settings, printed(figure), of_class)
        for row, (settings, figures) in rows.items()
        for of_class, figure in zip([*classes, None], figures.split(), strict=True)
    )


def on(data: str, labels: int, method: str | None = None, noise: float | None = None) -> dict[str, Any]:
    """Settings of a data set with a number of labels; `noise` is the rate of asymmetric noise."""
    settings: dict[str, Any] = {"data.name": data, "data.labels": labels}
    if method is not None:
        settings |= {"method.name": method}
    if noise is not None:
        settings |= {"data.noise": "asymmetric", "data.noise_rate": noise}
    return settings


def method(name: str) -> dict[str, Any]:
    """Settings of a method without changes."""
    return {"method.name": name}


ABLATED = {"CIFAR-10, 40": on("cifar10", 40, "aggmatch")}
"""The one column of most ablations."""

UDA_RERUN = method("uda") | {"method.threshold": 0.95, "method.temperature": 1.0}
"""UDA as the authors of FixMatch ran it: most of the paper's numbers of UDA are theirs, see docs/decisions/0007."""

MAIN = PaperTable(
    "main",
    "Methods by data set and number of labels",
    grid(
        {
            "CIFAR-10, 40": on("cifar10", 40),
            "CIFAR-10, 80": on("cifar10", 80),
            "CIFAR-10, 250": on("cifar10", 250),
            "CIFAR-100, 400": on("cifar100", 400),
            "SVHN, 40": on("svhn", 40),
            "SVHN, 250": on("svhn", 250),
        },
        {
            "Pseudo-Label": (method("pseudo_label"), "– – 51.22±0.43 – – 79.79±1.09"),
            "pi-Model": (method("pi_model"), "– – 45.74±3.97 – – 81.04±1.92"),
            "Mean Teacher": (method("mean_teacher"), "– – 67.68±2.30 – – 96.43±0.11"),
            "MixMatch": (method("mixmatch"), "51.90±11.76 – 88.97±0.85 32.39±1.32 57.45±14.53 96.02±0.26"),
            "UDA": (UDA_RERUN, "71.95±9.64 – 91.18±1.08 40.72±0.88 47.37±20.51 94.31±2.76"),
            "FixMatch": (method("fixmatch"), "86.19±3.37 92.73±0.59 94.93±0.65 51.15±1.75 96.04±2.17 97.52±0.38"),
            "FeatMatch": (method("featmatch"), "58.68±8.88 83.95±2.65 92.50±0.64 – – 96.66±0.19"),
            "PAWS": (method("paws"), "85.74±2.98 88.72±0.84 91.18±0.62 – – –"),
            "AggMatch": (method("aggmatch"), "92.54±0.76 93.09±0.85 94.26±0.23 55.58±1.57 95.72±0.48 95.48±0.66"),
        },
    ),
    note="UDA has the settings of its rerun by the authors of FixMatch (threshold 0.95, temperature 1), from which "
    "most of the paper's numbers come.",
)

NOISE = PaperTable(
    "noise",
    "Data set, number of labels and share of wrong ones among similar classes",
    grid(
        {
            "CIFAR-10, 40, 25 %": on("cifar10", 40, noise=0.25),
            "CIFAR-10, 250, 50 %": on("cifar10", 250, noise=0.5),
            "SVHN, 40, 25 %": on("svhn", 40, noise=0.25),
            "SVHN, 250, 50 %": on("svhn", 250, noise=0.5),
        },
        {
            "FixMatch": (method("fixmatch"), "72.18±10.95 79.68±4.84 81.39±3.35 75.12±2.04"),
            "AggMatch": (method("aggmatch"), "77.63±12.29 85.41±7.07 78.66±5.82 89.47±5.54"),
        },
    ),
    across="data, labels, wrong",
)

PER_CLASS = PaperTable(
    "per-class",
    "Classes of CIFAR-10 with 40 labels",
    by_class(
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        {
            "FixMatch": (on("cifar10", 40, "fixmatch"), "94.3 97.6 72.6 28.1 96.6 94.1 98.1 95.6 97.5 96.6 87.11"),
            "AggMatch": (on("cifar10", 40, "aggmatch"), "92.4 96.2 84.3 82.7 96.2 88.3 98.6 95.8 97.7 97.9 93.01"),
        },
    ),
    across="class",
    folds=1,
    note="The paper shows one fold and does not say which; ours is fold 0.",
)

COMPONENTS = PaperTable(
    "components",
    "Refinement of pseudo labels and estimation of confidence, CIFAR-10 with 40 labels",
    grid(
        {
            "without confidence": on("cifar10", 40, "aggmatch") | {"method.confidence": "off"},
            "with confidence": on("cifar10", 40, "aggmatch") | {"method.confidence": "weighting"},
        },
        {
            "without refinement": ({"method.refine": False}, "87.64±2.19 90.26±1.93"),
            "with refinement": ({"method.refine": True}, "90.56±2.63 92.54±0.76"),
        },
    ),
    corner="AggMatch",
    across="confidence",
)

SIMILARITY = PaperTable(
    "similarity",
    "Terms of the similarity",
    grid(
        ABLATED,
        {
            "features only": ({"method.class_term": "none"}, "89.58±5.02"),
            "features and classes": ({"method.class_term": "divergence"}, "92.54±0.76"),
        },
    ),
    corner="similarity",
)

CONFIDENCE = PaperTable(
    "confidence",
    "The consensus as a threshold on its entropy and as a weight",
    grid(
        ABLATED,
        {
            f"threshold, τ_u {most}": ({"method.confidence": "thresholding", "method.vote_entropy": most}, figure)
            for most, figure in ((1.5, "86.86"), (1.0, "90.82"), (0.5, "89.89"), (0.1, "88.28"))
        }
        | {"weight": ({"method.confidence": "weighting"}, "92.54")},
    ),
    corner="confidence",
)

QUEUE = PaperTable(
    "queue",
    "Slots of the queue for each class",
    grid(ABLATED, {"512": ({"method.slots": 512}, "92.09"), "2048": ({"method.slots": 2048}, "92.54±0.76")}),
    corner="slots",
)

MOMENTUM = PaperTable(
    "momentum",
    "Network that fills the queue, 512 slots per class",
    grid(
        {"CIFAR-10, 40": on("cifar10", 40, "aggmatch") | {"method.slots": 512}},
        {
            "online network": ({"method.momentum_encoder": False}, "–"),
            "momentum network": ({"method.momentum_encoder": True}, "92.09"),
        },
    ),
    corner="queue filled by",
    note="Without the momentum network the paper states a 9.5 % drop and no accuracy.",
)

TABLES = {table.name: table for table in (MAIN, NOISE, PER_CLASS, COMPONENTS, SIMILARITY, CONFIDENCE, QUEUE, MOMENTUM)}
"""All tables, by their names on the command line."""


def find_table(name: str) -> PaperTable:
    """The table called `name`."""
    if name not in TABLES:
        raise unknown("table", name, TABLES)
    return TABLES[name]
