"""What a plan still needs: its runs, how far each is, and about how long the rest takes on this machine."""

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from aggmatch.bench.step import stand_in
from aggmatch.bench.timing import release, time_calls
from aggmatch.data import SOURCES, DataSet, Split
from aggmatch.devices import choose_device, hardware
from aggmatch.experiments.planned import PlannedRun
from aggmatch.experiments.reproduce import Plan, describe_missing
from aggmatch.methods import build_modules, load_method
from aggmatch.models import parameter_count
from aggmatch.registry import short_name
from aggmatch.runs.stats import group_by
from aggmatch.settings import RunSettings
from aggmatch.tables import Table, duration, plural
from aggmatch.training.trainer import Trainer

SHARE = 16
"""On a CPU, a step of the paper's networks takes half a minute, so a step on 1 / SHARE of the batch is measured."""
FEW = 1000
"""Random unlabelled images to measure with; their number does not change the time of a step."""
PATIENCE = 4.0
"""Seconds up to which a whole step is measured on a CPU."""
MEASURING = 60.0
"""Seconds that all measurements may take."""
WHOLE = "a few steps measured here on random images, without evaluations"
PART = f"a step measured here on 1/{SHARE} of a batch of random images, without evaluations"
GUESSED = "a guess from the measured kind of run whose step computes about as much"


class StepPace(NamedTuple):
    """Seconds of a step, and where that number comes from."""

    seconds: float
    origin: str


def kind(settings: RunSettings) -> str:
    """Everything that decides how long a step takes, as text: runs with equal texts have the same pace."""
    source = SOURCES.load(settings.data.name)
    train = {name: getattr(settings.train, name) for name in ("batch", "unlabeled_ratio", "precision")}
    facts = {"shape": source.shape, "classes": len(source.classes), "train": train}
    return json.dumps({**settings.identity(), "data": None, **facts}, sort_keys=True)


def find_paces(runs: Sequence[PlannedRun], announce: Callable[[str], None]) -> dict[str, StepPace]:
    """The pace of each kind of unfinished run: from the log of such a run, measured here, or guessed.

    Kinds with little work are measured first. When the time for measuring is over, or on Ctrl-C, the paces of the
    others are guessed from the measured kind whose work is most similar. announce: called with progress messages.
    """
    paces: dict[str, StepPace] = {}
    for run in runs:
        if (logged := logged_seconds(run)) is not None:
            paces[kind(run.settings)] = StepPace(logged, "the logs of runs in the folder")
    unfinished = {kind(run.settings): run.settings for run in runs if not run.finished}
    works = {name: work(settings) for name, settings in unfinished.items()}
    waiting = sorted((name for name in unfinished if name not in paces), key=works.__getitem__)
    started, cost = time.monotonic(), 0.0
    try:
        for number, name in enumerate(waiting, 1):
            spent = time.monotonic() - started
            if spent + cost * works[name] > MEASURING:
                announce(f"{len(waiting) - number + 1} of {len(waiting)} kinds of runs are guessed from the others.")
                break
            settings = unfinished[name]
            announce(
                f"Measuring a step of {short_name(settings.method_name)} with {short_name(settings.model.name)} "
                f"({number} of {len(waiting)}; Ctrl-C skips the rest) ..."
            )
            paces[name] = measure(settings)
            cost = (time.monotonic() - started - spent) / works[name]
    except KeyboardInterrupt:
        announce("Measuring was stopped.")
    known = {name: pace for name, pace in paces.items() if name in works}
    guesses = {name: guess(works, known, name) for name in waiting if name not in paces} if known else {}
    return paces | guesses


def guess(works: Mapping[str, float], known: Mapping[str, StepPace], name: str) -> StepPace:
    """A pace in proportion to that of the known kind whose work is most similar."""
    nearest = min(known, key=lambda other: abs(math.log(works[other] / works[name])))
    return StepPace(known[nearest].seconds * works[name] / works[nearest], GUESSED)


def work(settings: RunSettings) -> float:
    """About how much a step computes: weights of the network times views of images."""
    source, train, labels = SOURCES.load(settings.data.name), settings.train, settings.data.labels or 0
    channels, classes = source.shape[0], len(source.classes)
    with torch.device("meta"):  # no memory, no computation
        method, network = build_modules(
            settings.model,
            settings.train.backbone,
            settings.method_name,
            settings.method,
            channels=channels,
            classes=classes,
            labels=labels,
            images=FEW,
        )
    views = method.views
    return parameter_count(network) * train.batch * (len(views.labeled) + train.unlabeled_ratio * len(views.unlabeled))


def logged_seconds(run: PlannedRun) -> float | None:
    """Seconds of a step by a run's log, evaluations included; None before its second line."""
    records = [record for record in run.folder.records() if "seconds" in record]
    if len({record["step"] for record in records}) < 2:
        return None
    first, last = records[0], records[-1]
    return float((last["seconds"] - first["seconds"]) / (last["step"] - first["step"]))


def measure(settings: RunSettings, given: tuple[DataSet, Split] | None = None) -> StepPace:
    """Measure the pace of training steps, without evaluations.

    given: images and their labels; None for random images of the right shape.
    """
    device = choose_device(settings.runtime.device)
    data, split = given or stand_in(settings, FEW + (settings.data.labels or 0))
    if device.type == "cuda":
        return StepPace(time_steps(settings, data, split, device, warm=5, steps=20), WHOLE)
    batch = -(-settings.train.batch // SHARE)
    if load_method(settings.method_name).balanced:
        batch = -(-batch // len(data.classes)) * len(data.classes)
    small = replace(settings, train=replace(settings.train, batch=batch))
    whole = time_steps(small, data, split, device, warm=1, steps=1) * settings.train.batch / batch
    if whole > PATIENCE:
        return StepPace(whole, PART)
    return StepPace(time_steps(settings, data, split, device, warm=1, steps=3), WHOLE)


def time_steps(
    settings: RunSettings, data: DataSet, split: Split, device: torch.device, *, warm: int, steps: int
) -> float:
    """Median seconds of a step, after `warm` steps that do not count."""
    trainer = Trainer(settings, data, split, device)
    for _ in range(warm):
        trainer.step()
    median = time_calls(trainer.step, device, steps).median
    del trainer
    release()  # the captured step keeps its memory, and it and its trainer refer to each other
    return median


def list_runs(plan: Plan) -> Table:
    """List every run with its state; the note gives the sum. Empty columns are left out."""
    rows = []
    for run in plan.runs:
        settings = run.settings
        named = [settings.data.name, settings.data.labels, short_name(settings.method_name), settings.data.fold]
        rows.append([*named, plan.variant(run), settings.train.steps, run.state])
    columns = ["data", "labels", "method", "fold", "with", "steps", "state"]
    left = [run for run in plan.runs if not run.finished]
    note = f"Nothing is left to train: {plural(len(plan.runs), 'run')} finished."
    if left:
        steps = sum(run.steps_left for run in left)
        note = f"{len(left)} of {len(plan.runs)} runs to train, {steps:,} steps. {describe_missing(plan.runs)}".rstrip()
    return Table(columns, rows, plan.table.heading, [note]).without_empty()


def estimate(plan: Plan, paces: Mapping[str, StepPace], at_once: int = 1) -> Table:
    """List how long the unfinished runs take, by kind; the notes give the sum and the source of the numbers."""
    left = group_by((run for run in plan.runs if not run.finished), lambda run: kind(run.settings))
    seconds = {name: sum(run.steps_left for run in runs) * paces[name].seconds for name, runs in left.items()}
    rows = []
    for name, runs in left.items():
        first, pace = runs[0].settings, paces[name].seconds
        data = ", ".join(dict.fromkeys(run.settings.data.name for run in runs))
        variants = "; ".join(dict.fromkeys(plan.variant(run) for run in runs))
        named = [short_name(first.method_name), short_name(first.model.name), data, variants]
        step = f"{pace:.1f} s" if pace >= 1 else f"{1000 * pace:.1f} ms"
        rows.append([*named, len(runs), step, duration(seconds[name])])
    columns = ["method", "model", "data", "with", "runs", "a step", "about"]
    device = choose_device(plan.runs[0].settings.runtime.device)
    shared = f" How much --at-once {at_once} shortens that is unknown." if at_once > 1 else ""
    total = f"About {duration(sum(seconds.values()))} one after the other on {hardware(device)}.{shared}"
    origins = Counter(paces[name].origin for name, runs in left.items() for _ in runs)
    sources = [f"- {origin} ({plural(count, 'run')})" for origin, count in origins.items()]
    return Table(columns, rows, notes=[f"{total} The estimate comes from", *sources]).without_empty()
