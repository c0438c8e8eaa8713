"""Notices that another process of a run has stopped, also while this one waits for it inside an operation on a GPU.

Every process writes a growing number to a store that all share, and watches the number of the next process. The first
report of a stopped process is written to the store too, where all read it. Time is counted in checks, not read from a
clock: if all processes are suspended together, none of them counts as stopped when they continue.
"""

import os
import socket
import sys
from contextlib import suppress
from threading import Event, Thread
from typing import Any

from aggmatch.errors import AggMatchError

BEAT = 1.0
"""Seconds between two signs of life."""
PATIENCE = 20.0
"""Seconds without a sign of life after which a process counts as stopped; torchrun ends the others after 30."""
BEGINNING = 120.0
"""The same for the first sign of life: processes on other machines may begin later."""
GRACE = 5.0
"""Seconds in which a process may end by itself after it learns that another one has stopped."""
ADVICE = "Resume the run: it continues from its newest checkpoint."
DONE = b"done"
STOPPED = "stopped"
"""Key of the first report."""


class Heartbeat(Thread):
    """A thread that ends this process if another one has stopped. A second thread talks to the store meanwhile.

    A store on a lost machine never answers, and torch has no time limit for that: the first thread uses no store.

    store: of torch.distributed, used by nobody else. rank: number of this process. world: number of processes.
    holder: name of what holds the store.
    """

    def __init__(self, store: Any, rank: int, world: int, holder: str) -> None:
        super().__init__(daemon=True, name="heartbeat")
        self.store, self.rank, self.world, self.holder = store, rank, world, holder
        self.next = (rank + 1) % world
        self.closing, self.noticed = Event(), Event()
        self.report = ""
        """Which process has stopped, and what to do; empty while none has."""
        self.last = b""
        """Sign of life of the next process at the last check."""
        self.silent = self.unanswered = 0
        """Checks without a new sign of life of the next process, and without an answer of the store."""
        self.talking = Thread(target=self.talk, daemon=True, name="signs of life")
        store.set(f"host/{rank}", socket.gethostname())
        store.set(f"beat/{rank}", "0")

    def run(self) -> None:
        """Wait for `close`, or until another process has stopped: then end this one, unless it ends by itself."""
        self.talking.start()
        while not self.closing.wait(BEAT) and not self.report:
            self.unanswered += 1
            if self.unanswered * BEAT > PATIENCE:
                self.report = f"{self.holder} stopped. {ADVICE}"
        if self.report:
            self.noticed.set()
            if not self.closing.wait(GRACE):  # the main thread waits for the process that has stopped
                print(f"Error: {self.report}", file=sys.stderr, flush=True)
                os._exit(2)

    def talk(self) -> None:
        """Write signs of life, and watch those of the next process."""
        beats = 0
        while not self.closing.wait(BEAT) and not self.report:
            beats += 1
            try:
                self.store.set(f"beat/{self.rank}", str(beats))
                self.watch()
                self.unanswered = 0
            except RuntimeError:  # of the connection to the store
                self.report = f"{self.holder} stopped. {ADVICE}"

    def watch(self) -> None:
        """Report the next process if it does not beat any more, and read the report of any process."""
        beat = self.read(f"beat/{self.next}")
        self.silent = self.silent + 1 if beat == self.last else 0
        self.last = beat
        if beat != DONE and self.silent * BEAT > (PATIENCE if beat else BEGINNING):
            self.announce(self.next)
        if report := self.read(STOPPED).decode():
            self.report = report

    def read(self, key: str) -> bytes:
        """Return a value of the store, empty if there is none; never waits for it."""
        return self.store.get(key) if self.store.check([key]) else b""

    def announce(self, rank: int, reason: str = "") -> None:
        """Tell all processes that one has stopped; only the first report counts."""
        host = self.read(f"host/{rank}").decode()
        report = f"Process {rank} of {self.world}, on {host}, stopped" + (f": {reason}" if reason else f". {ADVICE}")
        if not host:
            report = f"Process {rank} of {self.world} did not start. Look at the output of torchrun on its machine."
        self.store.compare_set(STOPPED, "", report)

    def check(self) -> None:
        """Raise an `AggMatchError` if another process is known to have stopped."""
        if self.noticed.is_set():
            raise AggMatchError(self.report)

    def find_stopped(self) -> None:
        """After a failed operation, wait for the report of the process that caused it and raise an `AggMatchError`."""
        self.noticed.wait(PATIENCE + GRACE)
        self.check()

    def close(self, reason: str = "") -> None:
        """Stop the heartbeat. reason: why this process stops before the run is finished; empty at the end of a run."""
        self.closing.set()
        self.join()
        self.talking.join(PATIENCE)
        if self.report or self.talking.is_alive():  # all know it already, or the store does not answer
            return
        with suppress(RuntimeError):  # nobody is left to read it
            if reason:
                self.announce(self.rank, reason)
            self.store.set(f"beat/{self.rank}", DONE)
