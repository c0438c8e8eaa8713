"""Results as a person reads them: small tables for a terminal, CSV, JSON, Markdown or LaTeX, and single values."""

import csv
import io
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

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
    "†": r"\dag{}",
    "‡": r"\ddag{}",
    "§": r"\S{}",
    "¶": r"\P{}",
}
"""Characters that LaTeX takes for something else or does not have in its fonts."""
PAGE = 75
"""Characters in the width of a LaTeX page; wider tables are set smaller."""


@dataclass(frozen=True)
class Table:
    """Named columns and rows of values; numbers are shown with two digits and aligned right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    notes: Sequence[str] = ()
    """Sentences to stand below it wherever a person reads it."""

    def rich(self) -> "RenderableType":
        """For a terminal, which shows every character as it is: a string would be read as markup."""
        from rich import box
        from rich.console import Group
        from rich.table import Table as RichTable
        from rich.text import Text

        title = Text(self.title, "bold") if self.title else None
        table = RichTable(title=title, box=box.SIMPLE_HEAD, title_justify="left")
        for number, column in enumerate(self.columns):
            table.add_column(Text(column), justify="right" if self.is_numeric(number) else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*(Text(show(value)) for value in row))
        return Group(table, *map(Text, self.notes))

    @property
    def width(self) -> int:
        """Characters that it takes in a terminal without breaking a line."""
        lines = [self.columns, *[[show(value) for value in row] for row in self.rows]]
        return sum(max(map(len, column)) + 3 for column in zip(*lines, strict=True)) + 1

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
        """A LaTeX table that needs no package: the title is its caption, the notes stand below it."""
        alignment = "".join("r" if self.is_numeric(number) else "l" for number in range(len(self.columns)))
        lines = [self.columns, *[[show(value) for value in row] for row in self.rows]]
        head, *body = (" & ".join(map(escape_latex, line)) + r" \\" for line in lines)
        content = [
            r"\begin{table}",
            r"\centering",
            *([rf"\caption{{{escape_latex(self.title)}}}"] if self.title else []),
            *([r"\scriptsize\setlength{\tabcolsep}{3pt}"] if self.width > PAGE else []),
            rf"\begin{{tabular}}{{{alignment}}}",
            r"\hline",
            head,
            r"\hline",
            *body,
            r"\hline",
            r"\end{tabular}",
            *(rf"\par {escape_latex(note)}" for note in self.notes),
            r"\end{table}",
        ]
        return "\n".join(content) + "\n"


def escape_latex(text: str) -> str:
    """Text that LaTeX sets as it stands."""
    return "".join(LATEX.get(character, character) for character in text)


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
            return f"{count} {unit}" if count >= 10 else f"{count} {unit} {rest // next_size} {next_unit}"
    return f"{whole} s"


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation, which one value alone does not have."""
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None


def show_mean(values: Sequence[float], digits: int = 2) -> str:
    """Mean ± sample standard deviation: 92.54 ± 0.76."""
    return " ± ".join(f"{value:.{digits}f}" for value in mean_and_deviation(values) if value is not None)
