"""Output for people: a live progress bar on a terminal, plain lines elsewhere."""

import codecs
import io
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn

from aggmatch.registry import short_name
from aggmatch.tables import duration, visible

if TYPE_CHECKING:
    from aggmatch.training.run import Run


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
TICK = 1.0
"""Seconds between two checks of a run that trains."""
SILENCE = 30.0
"""Without a terminal, the longest time in seconds without a line."""
FIRST_LINE = 5.0
"""Without a terminal, the time of the first line in seconds."""
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


def follow(run: "Run", *, title: str = "", quiet: bool = False) -> None:
    """Train a run to its end and show how far it is, each second and with each record.

    title: name of the run, if not that of its method. quiet: show nothing. If the output fails, training goes on
    without it.
    """
    stdout.lasting = True
    if quiet:
        for _ in run.train():
            pass
        return

    def steps_done() -> int:  # a thread asks, so a step costs nothing
        return run.state.steps_done

    train = run.settings.train
    state = RunProgress(title or short_name(run.settings.method_name), train.steps, train.evaluated, steps_done())
    show = follow_live if stdout.is_terminal else follow_plain
    show(run.train(), state, steps_done)


def follow_live(records: Iterable[dict[str, Any]], state: "RunProgress", steps_done: Callable[[], int]) -> None:
    """Show a progress bar with rate, loss, accuracy and the time left."""
    with Progress(*bar_columns(), console=stdout) as progress:
        task = progress.add_task(state.title, total=state.steps, completed=state.done, **state.fields)

        def show() -> None:
            state.move(steps_done())
            progress.update(task, completed=state.done, **state.fields)

        with every_second(show):
            for record in records:
                state.add(record)
                show()


def follow_plain(records: Iterable[dict[str, Any]], state: "RunProgress", steps_done: Callable[[], int]) -> None:
    """Print a line for each evaluation, each tenth of the run and every 30 seconds."""

    def show() -> None:
        state.move(steps_done())
        if state.line_due():
            say(state.line())

    with every_second(show):
        for record in records:
            if state.add(record) or state.line_due():
                say(state.line())


def bar_columns() -> tuple[ProgressColumn, ...]:
    """Columns of a live bar: name, bar, steps, what was logged, time so far and time left."""
    return (
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}", markup=False),
    )


def every_second(call: Callable[[], None]) -> AbstractContextManager[None]:
    """Within, a thread calls a function once a second."""
    return repeating(call, TICK, "progress")


@contextmanager
def repeating(call: Callable[[], object], seconds: float, name: str) -> Iterator[None]:
    """Within, a thread of this name calls a function, with these seconds in between, until it returns True."""
    over = Event()

    def repeat() -> None:
        while not over.wait(seconds) and call() is not True:
            pass

    thread = Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class TimeLeft:
    """Estimates how long the rest of a task takes, from the pace in the second half of the time so far.

    The first step often takes longest, so it counts only until the second one is done. done, total: steps at the start
    and in all. clock: gives the time in seconds.

    Example: `left = TimeLeft(0, 1000)`, then `left.note(10)` after ten steps, then `left.seconds()`.
    """

    def __init__(self, done: int, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self.clock = total, clock
        self.start = self.first = self.middle = self.last = Moment(clock(), done)
        self.moves = 0
        self.lock = Lock()  # a record and the clock may come at the same time

    def note(self, done: int) -> None:
        """Note the number of steps that are done now."""
        now = Moment(self.clock(), done)
        with self.lock:
            if done <= self.last.done:
                return
            self.moves += 1
            if self.moves == 2:
                self.start = self.first = self.middle = self.last
            if now.time - self.start.time >= 2 * (self.middle.time - self.start.time):
                self.first, self.middle = self.middle, now
            self.last = now

    def seconds(self) -> float | None:
        """Return the seconds that are left; None before the first step is done."""
        with self.lock:
            if not self.moves:
                return None
            pace = (self.last.time - self.first.time) / (self.last.done - self.first.done)
            since = self.clock() - self.last.time
            return max((self.total - self.last.done) * pace - since, 0.0)


class Moment(NamedTuple):
    """A number of steps, and when they were done."""

    time: float
    done: int


class RunProgress:
    """How far a run is, what it last logged, and how long the rest takes.

    title: name of the run. steps: number of steps in all. network: the one whose accuracy is shown. done: steps at
    the start. clock: gives the time in seconds.
    """

    def __init__(
        self, title: str, steps: int, network: str, done: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.title, self.steps, self.network, self.done, self.clock = visible(title), steps, network, done, clock
        self.facts: dict[str, str] = {}
        self.time_left = TimeLeft(done, steps, clock)
        self.started = clock()
        self.printed_at, self.printed_tenth = self.started - SILENCE + FIRST_LINE, self.tenth

    def move(self, done: int) -> None:
        """Note the number of steps that are done."""
        self.done = done
        self.time_left.note(done)

    def add(self, record: Mapping[str, Any]) -> bool:
        """Note a record of the log, and return whether it is an evaluation, which has a line of its own."""
        self.facts = self.facts | describe(record, self.network)  # not in place: another thread may read it
        self.move(record["step"])
        return f"accuracy_{self.network}" in record

    @property
    def tenth(self) -> int:
        """Number of whole tenths of the run that are done."""
        return 10 * self.done // self.steps

    @property
    def left(self) -> str:
        """How long the rest takes: `about 3 min 20 s left`."""
        seconds = self.time_left.seconds()
        return "time left: after the first step" if seconds is None else f"about {duration(seconds)} left"

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of a live bar."""
        return {"facts": "  ".join(self.facts.values()), "left": self.left}

    def line_due(self) -> bool:
        """Whether to print a line now: at each tenth, and if none was printed for 30 seconds."""
        return self.tenth > self.printed_tenth or self.clock() - self.printed_at >= SILENCE

    def line(self) -> str:
        """The state in one line, which counts as printed."""
        self.printed_at, self.printed_tenth = self.clock(), self.tenth
        rest = [] if self.done >= self.steps else [self.left]
        words = [self.title, f"step {self.done}/{self.steps}", *self.facts.values()]
        return "  ".join([*words, duration(self.printed_at - self.started), *rest])


def describe(record: Mapping[str, Any], network: str) -> dict[str, str]:
    """Rate, loss and accuracy of a record, if it has them."""
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
