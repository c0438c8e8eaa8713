"""Shows runs that train in other processes: a live bar per run on a terminal, lines elsewhere."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.progress import Progress, TaskID
from rich.text import Text

from aggmatch.console import RunProgress, bar_columns, every_second, say, stdout
from aggmatch.experiments.planned import Event, PlannedRun

ENDS = ("interrupted", "finished", "stopped", "failed")
"""Events after which a run does not train, or not until it starts again."""


def show_progress(events: Iterable[Event], *, quiet: bool) -> Iterator[Event]:
    """Show events as they happen, unless `quiet`; yield the failures."""
    show = show_bars if stdout.is_terminal else show_lines
    for event in events if quiet else show(events):
        if event.what == "failed":
            yield event


def progress_of(run: PlannedRun) -> RunProgress:
    """The progress of a run that starts now; its process tells of steps through the log only."""
    train = run.settings.train
    return RunProgress(run.title, train.steps, train.evaluated, run.steps_done)


def show_lines(events: Iterable[Event]) -> Iterator[Event]:
    """Print a line when a run starts, is evaluated and ends, at each tenth of it, and every 30 seconds."""
    training: dict[Path, RunProgress] = {}

    def show() -> None:
        for state in list(training.values()):
            if state.line_due():
                say(state.line())

    with every_second(show):
        for event in events:
            path = event.run.path
            if event.what in ENDS:
                training.pop(path, None)
            elif event.record is None:
                training[path] = progress_of(event.run)
            elif training[path].add(event.record) or training[path].line_due():
                say(training[path].line())
            if event.record is None and event.what != "failed":  # whoever gets the failure says why
                say(f"{event.run.title}  {event.what}")
            yield event


def show_bars(events: Iterable[Event]) -> Iterator[Event]:
    """Show a bar with the time left for each run in training; a line takes its place when the run ends."""
    bars: dict[Path, tuple[TaskID, RunProgress]] = {}
    with Progress(*bar_columns(), console=stdout) as progress:

        def show() -> None:
            for bar, state in list(bars.values()):
                progress.update(bar, completed=state.done, **state.fields)

        with every_second(show):
            for event in events:
                path, title = event.run.path, event.run.title
                if event.what in ENDS:
                    bar, state = bars.pop(path, (None, None))
                    if bar is not None:
                        progress.remove_task(bar)
                    words = [title, event.what, *(state.facts.values() if state else ())]
                    progress.console.print(Text("  ".join(words)))
                elif event.record:
                    bars[path][1].add(event.record)
                    show()
                else:
                    state = progress_of(event.run)
                    bars[path] = (
                        progress.add_task(title, total=state.steps, completed=state.done, **state.fields),
                        state,
                    )
                yield event
