"""Stop signals that are collected instead of ending the process, so that a run can be saved first."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM)


class Collector:
    """A signal handler that remembers the signals it received. Several may begin and end in any order."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.active = True
        self.before: dict[int, Any] = {}
        """Signal → the handler before this one."""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Note a signal, also for the active collectors below; a second Ctrl-C raises KeyboardInterrupt."""
        if number == signal.SIGINT and self.received:
            signal.default_int_handler(number, frame)
        if number == signal.SIGINT and sys.stderr.isatty():
            print("\nStopping after this step; Ctrl-C again stops at once, without saving.", file=sys.stderr)
        collector: Any = self
        while isinstance(collector, Collector):
            collector.received.append(number)
            collector = collector.before[number]


@contextmanager
def signals() -> Iterator[list[int]]:
    """Yield a list that collects SIGINT and SIGTERM within; a second Ctrl-C raises KeyboardInterrupt as usual.

    Outside the main thread, where Python allows no handlers, nothing is collected.
    """
    collector = Collector()
    try:
        collector.before = {number: signal.signal(number, collector) for number in STOPPING}
    except ValueError:
        yield collector.received
        return
    try:
        yield collector.received
    finally:
        collector.active = False
        for number in STOPPING:
            handler = signal.getsignal(number)
            while isinstance(handler, Collector) and not handler.active:
                handler = handler.before[number]
            signal.signal(number, handler or signal.SIG_DFL)
