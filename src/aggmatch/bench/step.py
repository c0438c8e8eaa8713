"""Benchmark of a method's training step: captured, eager, without the loop, in the loop, and stage by stage."""

import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
import torch.nn.functional as F

from aggmatch.bench.cost import Floor, find_floor
from aggmatch.bench.stages import Pieces, Stage, measure_stages
from aggmatch.bench.timing import Effort, Timing, affordable, peak_bytes, release, reset_peak, synchronize, time_calls
from aggmatch.data import SOURCES, DataSet, Images, Split, load, make_split
from aggmatch.methods.aggmatch.method import AggMatch
from aggmatch.methods.aggmatch.queue import ClassBalancedQueue
from aggmatch.registry import short_name
from aggmatch.runs.folder import RunFolder
from aggmatch.settings import RunSettings
from aggmatch.training.cuda_graph import WARM_CALLS
from aggmatch.training.run import Run, Stopped
from aggmatch.training.trainer import Trainer

NEVER = 2**40
"""More steps than any measurement makes."""


@dataclass(frozen=True)
class StepCost:
    """Time and memory of a step."""

    timing: Timing
    images: int
    """Number of views in a step."""
    captured: bool
    """Whether it ran as a CUDA graph."""
    first: float
    """Seconds from loaded data to the end of the first step."""
    peak: int | None
    """Peak memory in bytes."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "step": self.timing.to_dict(),
            "captured": self.captured,
            "images_per_step": self.images,
            "images_per_second": self.images / self.timing.median,
            "steps_per_second": 1 / self.timing.median,
            "first_step_seconds": self.first,
            "peak_memory_bytes": self.peak,
        }


@dataclass(frozen=True)
class MethodCost:
    """All measurements of a method's step."""

    step: StepCost
    bare: Timing
    """The computation alone, on a device that never waits for the host."""
    loop: float
    """Steps per second of the training loop with its log, without evaluations and checkpoints."""
    eager: Timing | None
    """The step without a CUDA graph; None if it has none."""
    floor: Floor
    stages: list[Stage] | None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        measured = self.step.timing.median
        return {
            **self.step.to_dict(),
            "bare": self.bare.to_dict(),
            "loop_steps_per_second": self.loop,
            "loop_share_of_bare": self.loop * self.bare.median,
            "eager": self.eager and self.eager.to_dict(),
            "eager_over_captured": self.eager and self.eager.median / measured,
            "floor": {**self.floor.to_dict(), "share": self.floor.seconds / measured},
            "stages": self.stages and [stage.to_dict() for stage in self.stages],
        }


class Bench:
    """Measures the step of one method."""

    def __init__(self, settings: RunSettings, effort: Effort) -> None:
        self.settings, self.effort = endless(settings), effort
        self.data, self.split = stand_in(settings)

    def step(self) -> tuple[StepCost, Trainer]:
        """Time the step; return its cost and the trainer, warmed up."""
        release()
        reset_peak(self.effort.device)
        started = time.perf_counter()
        trainer = self.build()
        trainer.step()
        synchronize(self.effort.device)
        first = time.perf_counter() - started
        warm(trainer)
        timing = time_calls(trainer.step, self.effort.device, self.effort.steps(trainer.step))
        captured, peak = trainer.graph is not None, peak_bytes(self.effort.device)
        return StepCost(timing, trainer.images_per_step, captured, first, peak), trainer

    def everything(self, *, stages: bool) -> MethodCost:
        """Make all measurements."""
        cost, trainer = self.step()
        bare = self.effort.time_part(bare_step(trainer))
        loop = self.loop(trainer, cost.timing)
        eager = None
        if cost.captured:
            del trainer
            release()
            trainer = self.build(graph=False)
            warm(trainer)
            eager = self.effort.time_part(trainer.step, ahead=False)
        pieces = Pieces(trainer)
        floor = find_floor(pieces)
        parts = measure_stages(pieces, self.effort, cost.timing.median) if stages else None
        return MethodCost(cost, bare, loop, eager, floor, parts)

    def build(self, *, graph: bool = True) -> Trainer:
        """Return a new trainer."""
        runtime = replace(self.settings.runtime, graph=graph and self.settings.runtime.graph)
        return Trainer(replace(self.settings, runtime=runtime), self.data, self.split, self.effort.device)

    def loop(self, trainer: Trainer, step: Timing) -> float:
        """Return the steps per second of `Run.train`, between two log lines about `step.calls` steps apart."""
        train, calls = self.settings.train, step.calls
        if self.effort.device.type != "cuda":  # 100 steps until the next line may take an hour
            calls = min(calls, max(1, affordable(step.median)))
            train = replace(train, log_every=min(train.log_every, calls))
        marks: list[tuple[int, float]] = []
        with TemporaryDirectory() as folder:
            settings = replace(self.settings, train=train)
            run = Run(settings, self.data, self.split, RunFolder(Path(folder)), trainer)
            with closing(cast(Generator[dict[str, Any]], run.train())) as records:
                try:
                    for record in records:
                        marks.append((record["step"], time.perf_counter()))
                        if record["step"] - marks[0][0] >= calls:
                            break
                except Stopped:  # the loop turned Ctrl-C into a request to save
                    raise KeyboardInterrupt from None
        (first_step, started), (last_step, ended) = marks[0], marks[-1]
        return (last_step - first_step) / (ended - started)


def bare_step(trainer: Trainer) -> Callable[[], object]:
    """Return the computation of a step alone: the replay of its graph if it has one."""
    if trainer.graph is not None:
        return trainer.graph.replay
    return partial(trainer.run_step, *trainer.next_inputs())


def warm(trainer: Trainer) -> None:
    """Bring a trainer into its usual state: a full queue, algorithms chosen, the graph captured."""
    if isinstance(trainer.method, AggMatch):
        fill_queue(trainer.method.queue)
    if trainer.device.type == "cuda":
        for _ in range(WARM_CALLS + 2):
            trainer.step()


@torch.no_grad()
def fill_queue(queue: ClassBalancedQueue) -> None:
    """Fill every slot with random features and distributions."""
    queue.feature.copy_(F.normalize(torch.randn_like(queue.feature), dim=-1))
    queue.probs.copy_(torch.randn_like(queue.probs).mul(3).softmax(-1))
    queue.fill.fill_(queue.slots)


def endless(settings: RunSettings) -> RunSettings:
    """Return settings with the same step, for a run that does not end, evaluate or save.

    The learning rate is almost 0: random images could make the loss diverge, which ends a run.
    """
    return replace(
        settings,
        optim=replace(settings.optim, lr=1e-9),
        train=replace(settings.train, steps=max(settings.train.steps, 2**20), evaluate_every=NEVER),
        runtime=replace(settings.runtime, checkpoint_every=NEVER, snapshots=(), snapshot_steps=()),
    )


def stand_in(settings: RunSettings, count: int | None = None) -> tuple[DataSet, Split]:
    """Return the data set and its split. A data set with files to download is replaced by random images of its shape.

    count: number of random images; None for as many as the data set has.
    """
    name = settings.data.name
    source = SOURCES.load(name)
    if not source.archives:
        data = load(name, Path(settings.runtime.data_dir))
    else:
        labels = torch.arange(count or source.train_size) % len(source.classes)
        pixels = torch.randint(256, (len(labels), *source.shape), dtype=torch.uint8)
        train, test = Images(pixels, labels), Images(pixels[:1], labels[:1])
        data = DataSet(name, train, test, source.classes, source.mirror, source.noise_map)
    return data, make_split(data, settings.data)


def describe_data(name: str) -> str:
    """Return a sentence about the images of the benchmark."""
    if SOURCES.load(name).archives:
        return f"Images: random ones in the shape and number of {short_name(name)}; no file of it is needed or read."
    origin = "comes with the package" if name in SOURCES.builtin() else "needs no download"
    return f"Images: {short_name(name)}, which {origin}."
