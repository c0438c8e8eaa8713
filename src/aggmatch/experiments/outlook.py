"""What a plan still takes: its runs, how far each is, and about how long the rest will take on this machine."""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from aggmatch.data import SOURCES
from aggmatch.devices import choose_device, hardware
from aggmatch.experiments.bench.step import stand_in
from aggmatch.experiments.bench.timing import synchronize
from aggmatch.experiments.reproduce import Plan, say_missing
from aggmatch.experiments.runs import PlannedRun
from aggmatch.methods import load_method
from aggmatch.tables import Table, duration, plural
from aggmatch.training.settings import RunSettings
from aggmatch.training.state import TrainState

SHARE = 16
"""On a CPU, where a step of the paper's networks takes half a minute, a batch of this part stands for a whole one."""
FEW = 1000
"""Random images that are made beside the labelled ones: how many there are does not change how long a step takes."""
PATIENCE = 4.0
"""Seconds up to which a whole step is measured even on a CPU."""
WHOLE = "a few steps measured here on random images, without evaluations"
PART = f"a step measured here on 1/{SHARE} of a batch of random images, without evaluations"


class StepPace(NamedTuple):
    """Seconds that a step takes, and how that is known."""

    seconds: float
    origin: str


def kind(settings: RunSettings) -> str:
    """What decides how long a step takes, as a text: runs that differ in anything else share their pace."""
    source = SOURCES[settings.data.name]
    train = {name: getattr(settings.train, name) for name in ("batch", "unlabeled_ratio", "precision")}
    facts = {"shape": source.shape, "classes": len(source.classes), "train": train}
    return json.dumps({**settings.identity(), "data": None, **facts}, sort_keys=True)


def find_paces(runs: Sequence[PlannedRun], announce: Callable[[str], None]) -> dict[str, StepPace]:
    """The pace of each kind of run that is not finished: that of a run in the folder, or else measured here.

    Ctrl-C ends the measuring; kinds that were not reached have no pace.
    """
    paces: dict[str, StepPace] = {}
    for run in runs:
        if (logged := logged_seconds(run)) is not None:
            paces[kind(run.settings)] = StepPace(logged, "the clock of runs in the folder")
    waiting = {kind(run.settings): run.settings for run in runs if not run.finished}
    waiting = {name: settings for name, settings in waiting.items() if name not in paces}
    try:
        for number, (name, settings) in enumerate(waiting.items(), 1):
            announce(
                f"Measuring a step of {settings.method_name} with {settings.model.name} "
                f"({number} of {len(waiting)}; Ctrl-C to do without) ..."
            )
            paces[name] = measure(settings)
    except KeyboardInterrupt:
        announce("Measuring was stopped.")
    return paces


def logged_seconds(run: PlannedRun) -> float | None:
    """Seconds of a step by a run's own clock, evaluations included; none before its second line of metrics."""
    records = [record for record in run.folder.records() if "seconds" in record]
    if len({record["step"] for record in records}) < 2:
        return None
    first, last = records[0], records[-1]
    return float((last["seconds"] - first["seconds"]) / (last["step"] - first["step"]))


def measure(settings: RunSettings) -> StepPace:
    """The pace of training steps on random images of the right shape, evaluations left out."""
    device = choose_device(settings.runtime.device)
    if device.type == "cuda":
        return StepPace(time_steps(settings, device, warm=5, steps=20), WHOLE)
    batch = -(-settings.train.batch // SHARE)
    if load_method(settings.method_name).balanced:
        classes = len(SOURCES[settings.data.name].classes)
        batch = -(-batch // classes) * classes
    part = time_steps(replace(settings, train=replace(settings.train, batch=batch)), device, warm=1, steps=1)
    whole = part * settings.train.batch / batch
    if whole > PATIENCE:
        return StepPace(whole, PART)
    return StepPace(time_steps(settings, device, warm=1, steps=3), WHOLE)


def time_steps(settings: RunSettings, device: torch.device, *, warm: int, steps: int) -> float:
    """Seconds of one of several steps after a few that do not count."""
    state = TrainState(settings, *stand_in(settings, FEW + (settings.data.labels or 0)), device)
    for _ in range(warm):
        state.step()
    synchronize(device)
    started = time.monotonic()
    for _ in range(steps):
        state.step()
    synchronize(device)
    return (time.monotonic() - started) / steps


def outlook(plan: Plan, paces: Mapping[str, StepPace]) -> Table:
    """Every run with its state and the time it still takes; the notes sum up. Columns without content are left out."""
    rows = []
    for run in plan.runs:
        settings, pace = run.settings, paces.get(kind(run.settings))
        left = duration(steps_left(run) * pace.seconds) if pace and not run.finished else None
        named = [settings.data.name, settings.data.labels, settings.method_name, settings.data.fold, plan.variant(run)]
        rows.append([*named, settings.train.steps, run.state, left])
    columns = ["data", "labels", "method", "fold", "with", "steps", "state", "about"]
    full = [number for number in range(len(columns)) if any(row[number] not in ("", None) for row in rows)]
    return Table(
        [columns[number] for number in full],
        [[row[number] for number in full] for row in rows],
        title=plan.table.heading,
        notes=summary(plan.runs, paces),
    )


def summary(runs: Sequence[PlannedRun], paces: Mapping[str, StepPace]) -> list[str]:
    """What is left in all, how long it takes, and what that estimate is from."""
    left = [run for run in runs if not run.finished]
    if not left:
        return [f"Nothing is left to train: {plural(len(runs), 'run')} finished."]
    steps = sum(map(steps_left, left))
    lines = [f"{len(left)} of {len(runs)} runs to train, {steps:,} steps. {say_missing(runs)}".rstrip()]
    known = [(run, paces[kind(run.settings)]) for run in left if kind(run.settings) in paces]
    if not known:
        return lines
    seconds = sum(steps_left(run) * pace.seconds for run, pace in known)
    device = choose_device(left[0].settings.runtime.device)
    origins = Counter(pace.origin for _, pace in known)
    unmeasured = plural(len(left) - len(known), "run")
    unknown = f", {unmeasured} whose step was not measured left out" if len(known) < len(left) else ""
    lines.append(f"About {duration(seconds)} one after the other on {hardware(device)}{unknown}. The estimate is from")
    lines += [f"- {origin} ({plural(count, 'run')})" for origin, count in origins.items()]
    return lines


def steps_left(run: PlannedRun) -> int:
    """Steps that a run still needs."""
    return run.settings.train.steps - run.steps_done
