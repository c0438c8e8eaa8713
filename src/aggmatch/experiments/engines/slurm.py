"""Trains runs as tasks of a Slurm array: writes its script and the plan that its tasks read, and submits it.

The files are in `OUT/slurm`. A plan never changes once it is written, because tasks in the queue refer to its runs by
their numbers: its name ends in a digest of its content.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

from aggmatch.console import say
from aggmatch.errors import AggMatchError
from aggmatch.experiments.planned import Event, PlannedRun
from aggmatch.registry import is_code, refuse_code
from aggmatch.settings import parts_named
from aggmatch.storage.files import digest, make_folder, write_atomically
from aggmatch.tables import plural
from aggmatch.validate import read_json

OPTION = re.compile(r"(?P<name>[a-z][a-z-]*[a-z])(=[\w./:,@%+*=\[\]-]+)?", re.ASCII)
OURS = ("array", "chdir", "error", "input", "no-requeue", "open-mode", "output", "requeue", "signal", "wrap")
"""Options of sbatch that the script itself sets, or that would break it."""
GPU_OPTIONS = ("gpus", "gpus-per-node", "gpus-per-task", "gres")
WARNING = 120
"""Seconds before the time limit at which a task saves and asks to be queued again."""
SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=aggmatch
{directives}

# Each task of the array trains one run. A signal makes the run save and stop; when the task starts again, it resumes.
# USR1: the time limit is near, so the task puts itself back into the queue. TERM: after a preemption, Slurm does that.
cd -- {folder} || exit 1
run='' again='' woken=''
pass_on() {{ woken=yes; if [ "$run" ]; then kill -TERM "$run" 2>/dev/null; fi; }}
trap 'again=yes; pass_on' USR1
trap pass_on TERM
{command} &
run=$!
if [ "$woken" ]; then kill -TERM "$run"; fi
while true; do
    woken=''
    wait "$run"
    code=$?
    if [ -z "$woken" ]; then break; fi # otherwise a signal ended the waiting, not the run
done
if [ "$again" ] && [ "$code" -ne 0 ]; then
    scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"
fi
exit "$code"
"""


class PlannedValues(TypedDict):
    """A planned run in a plan."""

    title: str
    path: str
    settings: dict[str, Any]


class PlanFile(TypedDict):
    """The content of a plan."""

    runs: list[PlannedValues]


class Slurm:
    """An `Engine` that leaves the training to Slurm.

    out: folder of the experiment. options: of sbatch, such as `partition=gpu`. at_once: how many tasks may run at the
    same time; None for all. submit: whether to call sbatch, or only to write the script. download: whether tasks fetch
    missing files of the data set.

    Example: `Slurm(Path("runs/mine"), ["time=12:00:00"], submit=True).train(runs, quiet=False)`.
    """

    stopped_by: int | None = None

    def __init__(
        self,
        out: Path,
        options: Iterable[str] = (),
        at_once: int | None = None,
        *,
        submit: bool = False,
        download: bool = False,
    ) -> None:
        self.folder = out.absolute() / "slurm"
        self.options = [checked(option) for option in options]
        self.at_once, self.submits, self.download = at_once, submit, download
        self.jobs = self.folder / "jobs.jsonl"
        self.later = 0

    def train(self, runs: Sequence[PlannedRun], *, quiet: bool) -> Iterator[Event]:
        """Write a script for the unfinished runs that are not in Slurm's queue, and submit it if that is wanted."""
        unfinished = [run for run in runs if not run.finished]
        queued = self.queued() if unfinished else set()
        missing = [run for run in unfinished if str(run.path.absolute()) not in queued]
        self.later = len(unfinished)
        if waiting := len(unfinished) - len(missing):
            say(f"In the queue of Slurm: {plural(waiting, 'run')}.")
        if missing:
            plan, script = self.write(missing)
            tasks = f"an array of {plural(len(missing), 'task')}"
            if self.submits:
                say(f"Submitted job {self.submit(script, plan)}, {tasks}.")
            else:
                say(f"Wrote {tasks}. Submit it: {how_to_submit(script)}")
        if unfinished:
            say("Run the same command again to see the table of finished runs and to submit what is missing.")
        yield from ()

    # Files --------------------------------------------------------------------------------------------------------

    def write(self, runs: Sequence[PlannedRun]) -> tuple[Path, Path]:
        """Write the plan of these runs and the script, and return both paths."""
        content = json.dumps({"runs": [run.to_dict() for run in runs]}, indent=1).encode()
        plan = make_folder(self.folder) / f"plan-{digest(content)}.json"
        script = os.fsencode(self.script(runs, plan))
        path = plan.with_name(f"array-{digest(script)}.sh")
        write_atomically(plan, content)
        write_atomically(path, script)
        return plan, path

    def script(self, runs: Sequence[PlannedRun], plan: Path) -> str:
        """Return the text of the script."""
        limit = f"%{self.at_once}" if self.at_once else ""
        directives = [f"array=0-{len(runs) - 1}{limit}", "output=%x-%A_%a.log", "open-mode=append", "requeue"]
        directives += [f"signal=B:USR1@{WARNING}"]
        named = {option.partition("=")[0] for option in self.options}
        if not named & set(GPU_OPTIONS) and any(run.settings.runtime.device != "cpu" for run in runs):
            directives.append("gpus=1")
        code = {name for run in runs for name in run.settings.parts if is_code(name)}
        words = [sys.executable, "-m", "aggmatch", "planned", str(plan)]
        words += [word for name in sorted(code) for word in ("--allow-code", name)]
        words += ["--download"] * self.download
        return SCRIPT.format(
            directives="\n".join(f"#SBATCH --{option}" for option in [*directives, *self.options]),
            folder=shlex.quote(str(Path.cwd())),
            command=f'{shlex.join(words)} --number "$SLURM_ARRAY_TASK_ID"',
        )

    # Slurm's commands ---------------------------------------------------------------------------------------------

    def submit(self, script: Path, plan: Path) -> str:
        """Submit the script and return the number of the job, which is noted with its plan."""
        ran = call(["sbatch", "--parsable", script.name], self.folder)
        if ran is None:
            raise AggMatchError(f"There is no sbatch here. On a machine that submits jobs: {how_to_submit(script)}")
        if ran.returncode:
            raise AggMatchError(f"sbatch refused {script}: {last_line(ran)} Change its options with --slurm.")
        job = ran.stdout.strip().partition(";")[0]  # a name of the cluster may follow
        with self.jobs.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"job": job, "plan": plan.name}) + "\n")
        return job

    def queued(self) -> set[str]:
        """Return the folders of the runs that wait or train in Slurm's queue, if this command submitted them."""
        folders: set[str] = set()
        for line in self.jobs.read_text(encoding="utf-8").splitlines() if self.jobs.exists() else ():
            with suppress(json.JSONDecodeError, KeyError):  # a line that a kill cut short
                entry = json.loads(line)
                numbers = numbers_in_queue(entry["job"], self.folder)
                runs = read_json(self.folder / entry["plan"], PlanFile)["runs"] if numbers else []
                folders |= {runs[number]["path"] for number in numbers if number < len(runs)}
        return folders


def numbers_in_queue(job: str, folder: Path) -> set[int]:
    """Return the numbers of the tasks of a job that wait or run."""
    ran = call(["squeue", "--noheader", "--array", f"--jobs={job}", "--format=%K"], folder)
    if ran is None or (ran.returncode and "Invalid job id" in ran.stderr):  # Slurm forgets jobs that are over
        return set()
    if ran.returncode:
        raise AggMatchError(f"squeue does not say which runs are in the queue: {last_line(ran)} Try again later.")
    return {int(word) for word in ran.stdout.split() if word.isdecimal()}


def call(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str] | None:
    """Run one of Slurm's commands in a folder; None if it is not installed."""
    try:
        return subprocess.run(words, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    except FileNotFoundError:
        return None


def last_line(ran: subprocess.CompletedProcess[str]) -> str:
    """The last line that a command printed, as a sentence."""
    lines = (ran.stderr.strip() or ran.stdout.strip() or f"exit code {ran.returncode}").splitlines()
    return lines[-1].rstrip(".") + "."


def how_to_submit(script: Path) -> str:
    """The command that submits a script; its logs go to the folder of the script."""
    return f"cd {shlex.quote(str(script.parent))} && sbatch {script.name}"


def checked(option: str) -> str:
    """Return an option of sbatch without its dashes; raise an `AggMatchError` if a script cannot hold it."""
    plain = option.removeprefix("--")
    match = OPTION.fullmatch(plain)
    if not match:
        raise AggMatchError(f"--slurm takes an option of sbatch as NAME=VALUE or NAME, got '{option}': partition=gpu")
    if match["name"] in OURS:
        raise AggMatchError(f"--slurm {option} cannot be set: the script needs its own {match['name']}.")
    return plain


def read_plan(path: Path, number: int, allow: Iterable[str] = ()) -> PlannedRun:
    """Return a run of a plan by its number.

    Raises an `AggMatchError` if there is none, or if it names code that is not in `allow`.
    """
    runs = read_json(path, PlanFile)["runs"]
    if not 0 <= number < len(runs):
        raise AggMatchError(f"{path} has no run {number}. Its runs have the numbers 0 to {len(runs) - 1}.")
    values = runs[number]
    refuse_code(parts_named(values["settings"]), allow, path)
    return PlannedRun.from_dict(values, str(path))
