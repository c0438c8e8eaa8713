"""Runs commands on a disk that fails: a process with the preloaded `disk.c` forks a child for each command.

The process has imported everything already, so that a command starts at once.
"""

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Self

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("cc") or shutil.which("gcc")
PATIENCE = 300.0
"""Seconds after which a command counts as hanging."""


@dataclass(frozen=True)
class Fault:
    """What happens at one event inside the folder: an error of the system, or a kill if `error` is 0."""

    event: int = 0
    """The number of the event, from 1; 0: nothing happens."""
    error: int = 0
    lasting: bool = False
    """Whether all later events fail too."""
    kill_after: float | None = None
    """Seconds after which the process is killed, whatever it does."""


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    """Exit code; −9 after a kill."""
    out: str
    err: str
    events: int
    """Events inside the folder; 0 after a kill."""


class Machine:
    """Forks a child for each command. Used as a context manager, because it is a process."""

    def __enter__(self) -> Self:
        assert COMPILER
        self.scratch = Path(mkdtemp(prefix="faults-"))
        library = self.scratch / "disk.so"
        source = Path(__file__).with_name("disk.c")
        subprocess.run([COMPILER, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.machine", str(self.scratch)],
            env=os.environ | threads | {"LD_PRELOAD": str(library), "PYTHONPATH": path, "MPLBACKEND": "agg"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def run(self, words: Sequence[object], folder: Path, fault: Fault = Fault()) -> Done:  # noqa: B008 - frozen
        """Run a command in a folder, inside which the fault happens."""
        assert self.process.stdin
        assert self.process.stdout
        order = {"words": [str(word) for word in words], "folder": str(folder), "fault": asdict(fault)}
        print(json.dumps(order), file=self.process.stdin, flush=True)
        return Done(**json.loads(self.process.stdout.readline()))


# The process --------------------------------------------------------------------------------------------------------


def serve(scratch: Path) -> None:
    """Import everything, then run one command after the other."""
    import sklearn.manifold  # noqa: F401 - so that children need not import it
    import torch

    import aggmatch
    from aggmatch import cli  # noqa: F401
    from aggmatch.report import page  # noqa: F401
    from aggmatch.training import run  # noqa: F401

    torch.set_num_threads(1)
    aggmatch.load("digits")
    for line in sys.stdin:
        print(json.dumps(asdict(run_child(scratch, **json.loads(line)))), flush=True)


def run_child(scratch: Path, words: Sequence[str], folder: str, fault: dict[str, Any]) -> Done:
    """Fork, run the command in the child, and wait for it or kill it."""
    chosen = Fault(**fault)
    outputs = [scratch / name for name in ("out", "err")]
    answer, question = os.pipe()
    child = os.fork()
    if not child:
        os.close(answer)
        code = run_command(words, folder, chosen, outputs)
        counted = ctypes.CDLL(None).fault_events()
        os.write(question, str(counted).encode())
        os._exit(code)
    os.close(question)
    patience = PATIENCE if chosen.kill_after is None else chosen.kill_after
    ready, _, _ = select.select([answer], [], [], patience)
    if not ready:
        os.kill(child, signal.SIGKILL)
    counted = os.read(answer, 100)
    os.close(answer)
    _, status = os.waitpid(child, 0)
    out, err = (path.read_text(encoding="utf-8", errors="replace") for path in outputs)
    if not ready and chosen.kill_after is None:
        err += f"\nTraceback: no end after {PATIENCE} s"
    return Done(os.waitstatus_to_exitcode(status), out, err, int(counted or 0))


def run_command(words: Sequence[str], folder: str, fault: Fault, outputs: Sequence[Path]) -> int:
    """Run a command in this process and return its exit code."""
    from aggmatch import cli

    for path, stream in zip(outputs, (1, 2), strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    sys.stdin = Path(os.devnull).open()  # noqa: SIM115
    os.chdir(folder)
    sys.argv = ["aggmatch", *words]
    arm = ctypes.CDLL(None).fault_arm
    arm(folder.encode(), ctypes.c_long(fault.event), fault.error, int(fault.lasting))
    try:
        cli.main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
