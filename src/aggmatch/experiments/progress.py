"""Shows runs that train in other processes: a live bar per run on a terminal, lines elsewhere."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from aggmatch.console import describe, say, stdout
from aggmatch.experiments.parallel import Event
from aggmatch.experiments.planned import Failure


def show_progress(events: Iterable[Event | Failure], *, quiet: bool) -> Iterator[Failure]:
    """Show events as they happen, unless `quiet`; yield the failures."""
    show = show_bars if stdout.is_terminal else show_lines
    for event in events if quiet else show(events):
        if isinstance(event, Failure):
            yield event


def show_lines(events: Iterable[Event | Failure]) -> Iterator[Event | Failure]:
    """Print a line when a run starts, is evaluated, and ends."""
    for event in events:
        train = event.run.settings.train
        if isinstance(event, Event) and event.record is None:
            say(f"{event.run.title}  {event.what}")
        elif isinstance(event, Event) and event.record and "accuracy_average" in event.record:
            facts = describe(dict(event.record), train.evaluated).values()
            say("  ".join([event.run.title, f"step {event.record['step']}/{train.steps}", *facts]))
        yield event


def show_bars(events: Iterable[Event | Failure]) -> Iterator[Event | Failure]:
    """Show a bar for each run in training; a line takes its place when the run ends."""
    bars: dict[Path, TaskID] = {}
    facts: dict[Path, dict[str, str]] = {}
    text, state = (TextColumn(form, markup=False) for form in ("{task.description}", "{task.fields[facts]}"))
    columns = (text, BarColumn(bar_width=None), MofNCompleteColumn(), state, TimeElapsedColumn())
    with Progress(*columns, console=stdout) as progress:
        for event in events:
            path, title, train = event.run.path, event.run.title, event.run.settings.train
            if isinstance(event, Failure) or event.what in ("finished", "stopped"):
                what = "failed" if isinstance(event, Failure) else event.what
                progress.remove_task(bars[path])
                progress.console.print(Text("  ".join([title, what, *facts[path].values()])))
            elif event.record:
                facts[path] |= describe(dict(event.record), train.evaluated)
                progress.update(bars[path], completed=event.record["step"], facts="  ".join(facts[path].values()))
            else:
                bars[path], facts[path] = progress.add_task(title, total=train.steps, facts=""), {}
            yield event
