"""Labels from a table: which file has which label.

The table is a CSV file with the columns `file` and `label`, or the log of events that `aggmatch label` writes
(`aggmatch.storage.annotations`). An empty label, or no row at all, means that an image has no label. Another format
needs one more line in `READERS`.
"""

import csv
import difflib
import io
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from aggmatch.data.own.decode import open_regular, printable
from aggmatch.errors import AggMatchError
from aggmatch.storage.annotations import parse, replay
from aggmatch.tables import plural, some_of

FILE, LABEL = "file", "label"
DELIMITERS = ",;\t"


class LabelRow(NamedTuple):
    """The label of one file."""

    file: str
    """Its path relative to the folder of the images."""
    label: str
    """Empty if the image has no label."""
    line: int
    """Where it stands in the table, for messages; 0 in a log of events."""


def read_labels(path: Path) -> list[LabelRow]:
    """Read a table of labels; the end of its name decides its format.

    Raises `AggMatchError` that names the line or column if the table cannot be used.

    Example: `read_labels(Path("labels.csv"))[0]` is `LabelRow("a/1.jpg", "rose", 2)`.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        *others, last = READERS
        raise AggMatchError(f"A table of labels must end in {', '.join(others)} or {last}, got {printable(path)}.")
    try:
        with open_regular(path) as stream:
            rows = reader(stream.read(), path)
    except FileNotFoundError:
        raise AggMatchError(f"There is no table of labels {printable(path)}.") from None
    except OSError as error:
        raise AggMatchError(f"Cannot read {printable(path)}: {error.strerror or error}.") from None
    check_contradictions(rows, path)
    return rows


def read_csv(data: bytes, path: Path) -> list[LabelRow]:
    """Read comma-, semicolon- or tab-separated values in UTF-8, with or without a byte-order mark."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise AggMatchError(f"{path}, line {line} is not UTF-8. Save the table as 'CSV UTF-8'.") from None
    header, _, _ = text.partition("\n")
    delimiter = max(DELIMITERS, key=header.count)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        columns = column_numbers(next(lines, []), path)
        return [make_row(fields, columns, lines.line_num, path) for fields in lines if any(map(str.strip, fields))]
    except csv.Error as error:
        raise AggMatchError(f"Cannot read {path}, line {lines.line_num}: {error}.") from None


def read_events(data: bytes, path: Path) -> list[LabelRow]:
    """Return the labels that a log of events gives; a warning names its lines that cannot be used."""
    events, problems = parse(data)
    if problems:
        lines = [f"line {problem.line} ({problem.reason})" for problem in problems]
        warnings.warn(f"Left out of {path}: {some_of(lines)}.", stacklevel=4)
    return [LabelRow(file, name, 0) for file, name in replay(events).labels.items()]


READERS: Mapping[str, Callable[[bytes, Path], list[LabelRow]]] = {
    ".csv": read_csv,
    ".tsv": read_csv,
    ".jsonl": read_events,
}
"""End of the file name → the function that reads such a table."""


def column_numbers(header: Sequence[str], path: Path) -> dict[str, int]:
    """Return the positions of the columns `file` and `label`; a warning names columns that are not used."""
    names = [name.strip().lower() for name in header]
    if missing := [name for name in (FILE, LABEL) if name not in names]:
        found = ", ".join(printable(name.strip()) or "an empty name" for name in header) or "none"
        raise AggMatchError(
            f"{path} must have the columns {FILE} and {LABEL} in its first line, but it has no "
            f"{' and no '.join(missing)}: its columns are {found}."
        )
    if len(set(names) & {FILE, LABEL}) < sum(name in (FILE, LABEL) for name in names):
        raise AggMatchError(f"{path} has two columns of the same name: its columns are {', '.join(names)}.")
    if others := [printable(name) for name in names if name not in (FILE, LABEL)]:
        warnings.warn(f"Columns of {path} that are not used: {some_of(others)}.", stacklevel=2)
    return {name: names.index(name) for name in (FILE, LABEL)} | {"count": len(names)}


def make_row(fields: Sequence[str], columns: Mapping[str, int], line: int, path: Path) -> LabelRow:
    """Return a row from the fields of a line."""
    if len(fields) != columns["count"]:
        raise AggMatchError(
            f"{path}, line {line} has {plural(len(fields), 'field')}, but its first line has {columns['count']}. "
            f"A name that contains the separator must be in quotes."
        )
    row = LabelRow(fields[columns[FILE]].strip(), fields[columns[LABEL]].strip(), line)
    if not row.file:
        raise AggMatchError(f"{path}, line {line} names no file.")
    if row.label != printable(row.label):
        raise AggMatchError(f"{path}, line {line}: the label {printable(row.label)} has control characters.")
    return row


def check_contradictions(rows: Iterable[LabelRow], path: Path) -> None:
    """Raise `AggMatchError` if two rows give one file different labels; an empty label contradicts nothing."""
    first: dict[str, LabelRow] = {}
    for row in rows:
        if row.label and first.setdefault(plain_name(row.file), row).label != row.label:
            other = first[plain_name(row.file)]
            raise AggMatchError(
                f"{path} gives {printable(row.file)} two labels: {other.label} in line {other.line} and {row.label} in "
                f"line {row.line}."
            )


def labels_of(rows: Sequence[LabelRow], files: Sequence[Path], root: Path, table: Path) -> dict[Path, str]:
    """Return file → label for the files that have a label.

    rows: the rows of a table. files: the image files below `root`, which the paths of the table are relative to.
    table: for messages. A warning names rows whose file is not there; if that is every row, it is an error.
    """
    by_name = {plain_name(file.relative_to(root).as_posix()): file for file in files}
    absolute = plain_name(root.resolve().as_posix()) + "/"
    found: dict[Path, str] = {}
    missing: list[str] = []
    for row in rows:
        name = plain_name(row.file).removeprefix(absolute)
        file = by_name.get(name) or by_name.get(name.removeprefix(f"{root.name}/"))  # of a table beside the folder
        if file is None:
            missing.append(printable(row.file))
        elif row.label:
            found[file] = row.label
    if missing:
        report_missing(missing, list(by_name), root, table, all_missing=len(missing) == len(rows))
    return found


def report_missing(missing: Sequence[str], names: Sequence[str], root: Path, table: Path, *, all_missing: bool) -> None:
    """Warn about files of a table that are not there, or raise if none is; say what a name could be instead."""
    first = plain_name(missing[0])
    wanted = PurePosixPath(first).name.casefold()
    close = [name for name in names if PurePosixPath(name).name.casefold() == wanted] or difflib.get_close_matches(
        first, names[:1000], 1, 0.8
    )
    hint = f" Paths are relative to {root}: did you mean {printable(close[0])}?" if close else ""
    text = f"{plural(len(missing), 'file')} of {table} {'is' if len(missing) == 1 else 'are'} not an image in {root}: "
    text += f"{some_of(missing)}.{hint}"
    if all_missing:
        raise AggMatchError(text)
    warnings.warn(text, stacklevel=3)


def plain_name(name: str) -> str:
    """Return a path in the one form in which paths are compared: slashes, no `./`, composed characters."""
    return unicodedata.normalize("NFC", PurePosixPath(name.replace("\\", "/")).as_posix())
