"""Shows runs that train in other processes: a live bar per run on a terminal, lines elsewhere."""

from collections.abc import Iterable, Iterator

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from aggmatch.console import describe, say, stdout
from aggmatch.experiments.parallel import Event
from aggmatch.experiments.planned import Failure, PlannedRun


def show_progress(events: Iterable[Event | Failure], *, quiet: bool) -> Iterator[Failure]:
    """Show events as they happen, unless `quiet`; yield the failures."""
    if quiet:
        yield from (event for event in events if isinstance(event, Failure))
    elif stdout.is_terminal:
        yield from show_bars(events)
    else:
        yield from show_lines(events)


def show_lines(events: Iterable[Event | Failure]) -> Iterator[Failure]:
    """Print a line when a run starts, is evaluated, and ends."""
    for event in events:
        if isinstance(event, Failure):
            yield event
        elif event.record is None:
            say(f"{event.run.title}  {event.what}")
        elif "accuracy_average" in event.record:
            say("  ".join([event.run.title, *step_facts(event)]))


def show_bars(events: Iterable[Event | Failure]) -> Iterator[Failure]:
    """Show a bar for each run in training; when the run ends, a line takes its place."""
    columns = (
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}", markup=False),
        TimeElapsedColumn(),
    )
    bars: dict[PlannedRun, TaskID] = {}
    facts: dict[PlannedRun, dict[str, str]] = {}
    with Progress(*columns, console=stdout) as progress:
        for event in events:
            run = event.run
            if isinstance(event, Event) and event.what == "started":
                bars[run] = progress.add_task(run.title, total=run.settings.train.steps, facts="")
                facts[run] = {}
            elif isinstance(event, Event) and event.record:
                facts[run] |= describe(dict(event.record), run.settings.train.evaluated)
                progress.update(bars[run], completed=event.record["step"], facts="  ".join(facts[run].values()))
            else:
                progress.remove_task(bars.pop(run))
                if isinstance(event, Failure):
                    yield event
                else:
                    progress.console.print(Text("  ".join([run.title, event.what, *facts[run].values()])))


def step_facts(event: Event) -> list[str]:
    """The step and the values of a log line."""
    assert event.record is not None
    train = event.run.settings.train
    return [f"step {event.record['step']}/{train.steps}", *describe(dict(event.record), train.evaluated).values()]
