"""Output for people: a live progress bar on a terminal, plain lines elsewhere."""

import codecs
import io
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from aggmatch.tables import visible


class LastingConsole(Console):
    """A console that survives a closed pipe: `aggmatch train | head` stops the output, not the training."""

    lasting = False
    """Whether it also survives other errors, such as a full disk: during training, where only the folder counts."""

    def on_broken_pipe(self) -> None:
        """Print nothing from now on."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())  # for output that is still buffered
        os.close(nowhere)

    def _check_buffer(self) -> None:
        """Write what was printed."""
        try:
            super()._check_buffer()
        except OSError as error:
            if not self.lasting:
                raise
            self.on_broken_pipe()
            complain(f"Warning: Cannot print: {error.strerror}. The command goes on without output.")


WIDE = 160
"""Columns without a terminal: in a pipe, a row of a table should be one line."""
stdout = LastingConsole(width=None if "COLUMNS" in os.environ or (sys.stdout and sys.stdout.isatty()) else WIDE)
stderr = LastingConsole(stderr=True)
stderr.lasting = True


def say(text: str, *, error: bool = False, quiet: bool = False) -> None:
    """Print a text to standard output, or to standard error with `error`; nothing with `quiet`.

    Brackets are not markup, colons are not emoji, and only the terminal itself breaks long lines.
    """
    if not quiet:
        (stderr if error else stdout).out(visible(text), highlight=False)


def complain(text: str) -> None:
    """Print a warning or an error to standard error, if that is possible."""
    with suppress(OSError):
        print(visible(text), file=sys.stderr)


def follow(records: Iterable[dict[str, Any]], *, title: str, done: int, steps: int, network: str, quiet: bool) -> None:
    """Consume the records of a training run and show each one as it comes.

    title: name of the run. done, steps: steps before the first record, and in all. network: the one whose accuracy is
    shown. quiet: show nothing. If the output fails, training goes on without it.
    """
    stdout.lasting = True
    if quiet:
        for _ in records:
            pass
    elif stdout.is_terminal:
        follow_live(records, title, done, steps, network)
    else:
        follow_plain(records, title, steps, network)


def follow_live(records: Iterable[dict[str, Any]], title: str, done: int, steps: int, network: str) -> None:
    """Show a progress bar with rate, loss, accuracy and the time left."""
    columns = (
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    facts: dict[str, str] = {}
    with Progress(*columns, console=stdout) as progress:
        task = progress.add_task(visible(title), total=steps, completed=done, facts="")
        for record in records:
            facts |= describe(record, network)
            progress.update(task, completed=record["step"], facts="  ".join(facts.values()))


def follow_plain(records: Iterable[dict[str, Any]], title: str, steps: int, network: str) -> None:
    """Print one line per evaluation."""
    facts: dict[str, str] = {}
    for record in records:
        facts |= describe(record, network)
        if f"accuracy_{network}" in record:
            line = "  ".join([title, f"step {record['step']}/{steps}", *facts.values(), f"{record['seconds']:.0f} s"])
            say(line)


def describe(record: dict[str, Any], network: str) -> dict[str, str]:
    """Rate, loss and accuracy of a record, as far as it has them."""
    facts = {}
    if "loss" in record:
        facts["rate"] = f"{record['images_per_second']:,.0f} img/s"
        facts["loss"] = f"loss {record['loss']:.3f}"
    if f"accuracy_{network}" in record:
        facts["accuracy"] = f"accuracy {record[f'accuracy_{network}']:.2f} %"
    return facts


# Encodings -----------------------------------------------------------------------------------------------------------

PLAIN = {"±": "+-", "–": "-", "−": "-", "…": "...", "×": "x", "·": "*", "µ": "u", "τ": "t", "π": "pi"}
PLAIN |= dict(zip("†‡§¶", "*#@&", strict=True))  # marks must still differ
"""Replacements for characters that a stream cannot encode; all others become a question mark."""


def print_plainly(*streams: TextIO) -> None:
    """Make streams replace characters that they cannot encode instead of failing."""
    codecs.register_error("aggmatch.plain", replaced)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="aggmatch.plain")


def replaced(error: UnicodeError) -> tuple[str, int]:
    """The replacement for characters that could not be encoded, and the position after them."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(character, "?") for character in error.object[error.start : error.end]), error.end
