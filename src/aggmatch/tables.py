"""Results for people: tables for a terminal or as CSV, JSON, Markdown or LaTeX, and the format of single values."""

import csv
import io
import json
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
"""Characters that have a meaning in LaTeX or are missing in its fonts → how to write them."""
PAGE = 60
"""Characters that always fit into the width of a LaTeX page; a wider table may have to be shrunk."""
BIDI = "\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Characters that reverse the order of others."""
CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{BIDI}]")
"""Characters that a terminal acts on instead of showing them; tabs and new lines may be in a text."""
LINES = re.compile(rf"[\x00-\x1f\x7f-\x9f{BIDI}]")
"""The same and tabs and new lines, which have no place in a cell of a table."""
FOLDED = 8
"""Characters to which a narrow terminal may break long words; numbers and headings are never broken."""


@dataclass(frozen=True)
class Table:
    """Named columns and rows of values; floats have two decimals, numbers are aligned right. A console can print it.

    Example: `Table(["method", "accuracy %"], [["fixmatch", 91.234]]).markdown()`.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    notes: Sequence[str] = ()
    """Sentences below the table; CSV and JSON leave them out."""

    def without_empty(self) -> "Table":
        """The table without columns that have no value in any row."""
        full = [
            number for number in range(len(self.columns)) if any(row[number] not in ("", None) for row in self.rows)
        ]
        return self.only(full)

    def without(self, column: str) -> "Table":
        """The table without a column."""
        return self.only([number for number, name in enumerate(self.columns) if name != column])

    def only(self, numbers: Sequence[int]) -> "Table":
        """The table with some of its columns."""
        rows = [[row[number] for number in numbers] for row in self.rows]
        return replace(self, columns=[self.columns[number] for number in numbers], rows=rows)

    @property
    def width(self) -> int:
        """Width in characters that a terminal needs to show it without breaking lines."""
        return sum(max(map(len, column)) + 3 for column in self.texts()) + 1

    def texts(self) -> list[list[str]]:
        """Texts that a terminal shows, by column, heading first."""
        shown = [[visible(show(row[number]), LINES) for row in self.rows] for number in range(len(self.columns))]
        return [[visible(column, LINES), *line_up(texts)] for column, texts in zip(self.columns, shown, strict=True)]

    def is_numeric(self, number: int) -> bool:
        """Whether a column holds numbers."""
        return any(isinstance(row[number], (int, float)) for row in self.rows)

    def csv(self) -> str:
        """Comma-separated values with a header."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
        return text.getvalue()

    def json(self) -> str:
        """A JSON list with one object per row."""
        return json.dumps(
            [dict(zip(self.columns, row, strict=True)) for row in self.rows], indent=2, ensure_ascii=False
        )

    def markdown(self) -> str:
        """A Markdown table."""
        lines = [self.columns, ["---"] * len(self.columns), *[[show(value) for value in row] for row in self.rows]]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "".join(f"\n{note}\n" for note in self.notes)

    def latex(self) -> str:
        """A LaTeX table with the title as caption and the notes below it. A wide one needs the package graphicx."""
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

    # In a terminal; every character is shown as it is, where rich would read markup -----------------------------------

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[RenderableType]":
        from rich.text import Text

        texts = self.texts()
        widths = fit(texts, options.max_width)
        if widths:
            yield self.grid(texts, widths)
        else:
            yield from self.listing(texts)
        yield from map(Text, map(visible, self.notes))

    def grid(self, texts: Sequence[Sequence[str]], widths: Sequence[int]) -> "RenderableType":
        """Rows and columns."""
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        title = Text(visible(self.title), "bold") if self.title else None
        grid = RichTable(title=title, box=box.SIMPLE_HEAD, title_justify="left")
        for number, (column, width) in enumerate(zip(texts, widths, strict=True)):
            side: Literal["left", "right"] = "right" if self.is_numeric(number) else "left"
            grid.add_column(Text(column[0]), justify=side, overflow="fold", width=width)
        for row in zip(*(column[1:] for column in texts), strict=True):
            grid.add_row(*map(Text, row))
        return grid

    def listing(self, texts: Sequence[Sequence[str]]) -> "Iterator[RenderableType]":
        """One line per value, for a terminal that is too narrow for columns."""
        from rich.text import Text

        if self.title:
            yield Text(visible(self.title), "bold")
        for row in zip(*(column[1:] for column in texts), strict=True):
            yield Text("")
            for (column, *_), text in zip(texts, row, strict=True):
                yield Text(f"{column}: {text.strip()}" if column else text.strip())
        yield Text("")


def line_up(texts: Sequence[str]) -> list[str]:
    """Pad texts that begin with a decimal number on the left, so that their decimal points are aligned."""
    whole = [len(match[1]) if (match := re.match(r"(\d+)\.\d", text)) else None for text in texts]
    most = max(filter(None, whole), default=0)
    return [" " * (most - digits) + text if digits else text for digits, text in zip(whole, texts, strict=True)]


def fit(columns: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """Return widths of columns that fit into `room` characters, or None if that is impossible.

    columns: texts by column, heading first. The widest columns are narrowed first; words are broken only if necessary.
    """
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in columns]
    spare = room - 1 - 3 * len(columns)  # without the space between columns
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
    """Smallest width of a column (heading first) that breaks no number, no word of its heading and no short word.

    longest: words up to this length are short.
    """
    from rich.cells import cell_len

    heading, *texts = column
    words = [word for text in texts for word in text.split()]
    whole = [*heading.split(), *(word for word in words if word.lstrip("+-−(")[:1].isdigit())]
    return max([min(longest, max(map(cell_len, words), default=0)), *map(cell_len, whole)])


def escape_latex(text: str) -> str:
    """Return a text for LaTeX that prints as it is."""
    return "".join(LATEX.get(part, part) for part in re.split(r"(τ_u|.)", text) if part)


# Values -----------------------------------------------------------------------------------------------------------


def show(value: Any) -> str:
    """Return a value as text: floats with two decimals, None as a dash."""
    if value is None:
        return "–"
    return f"{round(value, 2) + 0.0:.2f}" if isinstance(value, float) else str(value)  # never −0.00


def visible(text: str, characters: re.Pattern[str] = CONTROL) -> str:
    """Return a text for a terminal, with control characters written out, such as `\\x1b`: a name must not act there."""
    return characters.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def plural(count: int, noun: str) -> str:
    """Return a number with its noun: 1 run, 2 runs, 2 classes."""
    return f"{count:,} {noun}" + ("" if count == 1 else "es" if noun.endswith("s") else "s")


def some_of(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, and how many more there are: a, b, c and 4 more."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def duration(seconds: float | None) -> str:
    """Return a time in its largest unit; below ten of that unit also in the next smaller one: 3 h 12 min."""
    if seconds is None:
        return show(None)
    whole = round(seconds)
    for (unit, size), (next_unit, next_size) in pairwise((("d", 86400), ("h", 3600), ("min", 60), ("s", 1))):
        count, rest = divmod(whole, size)
        if count:
            return f"{count:,} {unit}" if count >= 10 else f"{count} {unit} {rest // next_size} {next_unit}"
    return f"{whole} s"


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Return mean and sample standard deviation, which is None for a single value."""
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None


def show_mean(values: Sequence[float], digits: int = 2) -> str:
    """Return mean ± sample standard deviation as text: 92.54 ± 0.76."""
    return " ± ".join(f"{value:.{digits}f}" for value in mean_and_deviation(values) if value is not None)
