"""A small table of results that prints in a terminal and writes as CSV, JSON or Markdown."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import rich.table


@dataclass(frozen=True)
class Table:
    """Named columns and rows of values; numbers are shown with two digits and aligned right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""

    def rich(self) -> "rich.table.Table":
        """For a terminal."""
        from rich import box
        from rich.table import Table as RichTable

        table = RichTable(title=self.title or None, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
        for number, column in enumerate(self.columns):
            numeric = any(isinstance(row[number], (int, float)) for row in self.rows)
            table.add_column(column, justify="right" if numeric else "left")
        for row in self.rows:
            table.add_row(*map(show, row))
        return table

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
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def show(value: Any) -> str:
    """A value as a person reads it."""
    if value is None:
        return "–"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
