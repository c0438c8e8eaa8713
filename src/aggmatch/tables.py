"""Results as a person reads them: small tables for a terminal, CSV, JSON, Markdown or LaTeX, and single values."""

import csv
import io
import json
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    "[": "{[}",
    "–": "--",
    "…": r"\dots{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "µ": r"$\mu$",
    "λ": r"$\lambda$",
    "τ": r"$\tau$",
    "τ_u": r"$\tau_u$",
    "†": r"\dag{}",
    "‡": r"\ddag{}",
    "§": r"\S{}",
    "¶": r"\P{}",
}
"""What LaTeX takes for something else or does not have in its fonts."""
PAGE = 60
"""Characters that surely fit into the width of a LaTeX page; wider tables may have to be shrunk."""
FOLDED = 8
"""Characters of a line to which long words may be folded in a narrow terminal; numbers and headings never are."""


@dataclass(frozen=True)
class Table:
    """Named columns and rows of values; numbers are shown with two digits and aligned right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    notes: Sequence[str] = ()
    """Sentences to stand below it wherever a person reads it."""

    def rich(self) -> "RenderableType":
        """For a terminal of any width."""
        return Shown(self)

    @property
    def width(self) -> int:
        """Characters that it takes in a terminal without breaking a line."""
        return sum(max(map(len, column)) + 3 for column in self.texts()) + 1

    def texts(self) -> list[list[str]]:
        """What a terminal shows, column by column, headings first."""
        return [
            [column, *line_up([show(row[number]) for row in self.rows])] for number, column in enumerate(self.columns)
        ]

    def is_numeric(self, number: int) -> bool:
        """Whether a column holds numbers."""
        return any(isinstance(row[number], (int, float)) for row in self.rows)

    def csv(self) -> str:
        """Comma-separated values with a header."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
        return text.getvalue()

    def json(self) -> str:
        """A list of objects."""
        return json.dumps(
            [dict(zip(self.columns, row, strict=True)) for row in self.rows], indent=2, ensure_ascii=False
        )

    def markdown(self) -> str:
        """A Markdown table."""
        lines = [self.columns, ["---"] * len(self.columns), *[[show(value) for value in row] for row in self.rows]]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "".join(f"\n{note}\n" for note in self.notes)

    def latex(self) -> str:
        """A LaTeX table: the title is its caption, the notes stand below it. A wide one needs the package graphicx."""
        alignment = "".join("r" if self.is_numeric(number) else "l" for number in range(len(self.columns)))
        lines = [self.columns, *[[show(value) for value in row] for row in self.rows]]
        head, *body = (" & ".join(map(escape_latex, line)) + r" \\" for line in lines)
        wide = self.width > PAGE
        content = [
            *([r"% needs \usepackage{graphicx}"] if wide else []),
            r"\begin{table}",
            r"\centering",
            *([rf"\caption{{{escape_latex(self.title)}}}"] if self.title else []),
            *([r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"] if wide else []),
            rf"\begin{{tabular}}{{{alignment}}}",
            r"\hline",
            head,
            r"\hline",
            *body,
            r"\hline",
            r"\end{tabular}" + "}" * wide,
            *(rf"\par {escape_latex(note)}" for note in self.notes),
            r"\end{table}",
        ]
        return "\n".join(content) + "\n"


@dataclass(frozen=True)
class Shown:
    """A table in a terminal, which shows every character as it is: a string would be read as markup."""

    table: Table

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[RenderableType]":
        from rich.text import Text

        texts = self.table.texts()
        widths = fit(texts, options.max_width)
        if widths:
            yield self.grid(texts, widths)
        else:
            yield from self.listing(texts)
        yield from map(Text, self.table.notes)

    def grid(self, texts: Sequence[Sequence[str]], widths: Sequence[int]) -> "RenderableType":
        """Rows and columns."""
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        title = Text(self.table.title, "bold") if self.table.title else None
        grid = RichTable(title=title, box=box.SIMPLE_HEAD, title_justify="left")
        for number, (column, width) in enumerate(zip(self.table.columns, widths, strict=True)):
            side: Literal["left", "right"] = "right" if self.table.is_numeric(number) else "left"
            grid.add_column(Text(column), justify=side, overflow="fold", width=width)
        for row in zip(*(column[1:] for column in texts), strict=True):
            grid.add_row(*map(Text, row))
        return grid

    def listing(self, texts: Sequence[Sequence[str]]) -> "Iterator[RenderableType]":
        """One line a value, for a terminal without room for columns."""
        from rich.text import Text

        if self.table.title:
            yield Text(self.table.title, "bold")
        for row in zip(*(column[1:] for column in texts), strict=True):
            yield Text("")
            for column, text in zip(self.table.columns, row, strict=True):
                yield Text(f"{column}: {text.strip()}" if column else text.strip())
        yield Text("")


def line_up(texts: Sequence[str]) -> list[str]:
    """Texts with blanks before those that begin with a decimal number: their points stand below one another."""
    whole = [len(match[1]) if (match := re.match(r"(\d+)\.\d", text)) else None for text in texts]
    most = max(filter(None, whole), default=0)
    return [" " * (most - digits) + text if digits else text for digits, text in zip(whole, texts, strict=True)]


def fit(columns: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """Widths of columns (heading first) that fit into a line, the widest narrowed first; None where they cannot.

    Words are broken only if nothing else helps.
    """
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in columns]
    spare = room - 1 - 3 * len(columns)  # beside what lies between columns
    for longest in (room, FOLDED):
        least = [least_width(column, longest) for column in columns]
        if sum(least) <= spare:
            break
    else:
        return None
    while sum(widths) > spare:
        _, widest = max((width, number) for number, width in enumerate(widths) if width > least[number])
        widths[widest] -= 1
    return widths


def least_width(column: Sequence[str], longest: int) -> int:
    """Width at which a column (heading first) breaks no number, no word of its heading and none up to `longest`."""
    from rich.cells import cell_len

    heading, *texts = column
    words = [word for text in texts for word in text.split()]
    whole = [*heading.split(), *(word for word in words if word.lstrip("+-−(")[:1].isdigit())]
    return max([min(longest, max(map(cell_len, words), default=0)), *map(cell_len, whole)])


def escape_latex(text: str) -> str:
    """Text that LaTeX sets as it stands."""
    return "".join(LATEX.get(part, part) for part in re.split(r"(τ_u|.)", text) if part)


# Values -----------------------------------------------------------------------------------------------------------


def show(value: Any) -> str:
    """A value as a person reads it."""
    if value is None:
        return "–"
    return f"{round(value, 2) + 0.0:.2f}" if isinstance(value, float) else str(value)  # never −0.00


def plural(count: int, noun: str) -> str:
    """A number with its noun."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def duration(seconds: float | None) -> str:
    """A time in its largest unit, and in the next smaller one too where there are fewer than ten of it."""
    if seconds is None:
        return show(None)
    whole = round(seconds)
    for (unit, size), (next_unit, next_size) in pairwise((("d", 86400), ("h", 3600), ("min", 60), ("s", 1))):
        count, rest = divmod(whole, size)
        if count:
            return f"{count:,} {unit}" if count >= 10 else f"{count} {unit} {rest // next_size} {next_unit}"
    return f"{whole} s"


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation, which one value alone does not have."""
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None


def show_mean(values: Sequence[float], digits: int = 2) -> str:
    """Mean ± sample standard deviation: 92.54 ± 0.76."""
    return " ± ".join(f"{value:.{digits}f}" for value in mean_and_deviation(values) if value is not None)
