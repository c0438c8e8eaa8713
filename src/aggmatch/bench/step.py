"""A method's training step: how long it takes captured, eager, bare and in the loop, and what it is made of."""

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
from aggmatch.bench.timing import (
    Effort,
    Timing,
    affordable,
    peak_bytes,
    release,
    reset_peak,
    synchronize,
    time_calls,
)
from aggmatch.data import SOURCES, DataSet, Images, Split, load, make_split
from aggmatch.methods.aggmatch.method import AggMatch
from aggmatch.methods.aggmatch.queue import ClassBalancedQueue
from aggmatch.runs.folder import RunFolder
from aggmatch.settings import RunSettings
from aggmatch.training.cuda_graph import WARM_CALLS
from aggmatch.training.run import Run, Stopped
from aggmatch.training.trainer import Trainer

NEVER = 2**40
"""A number of steps that no measurement reaches."""


@dataclass(frozen=True)
class StepCost:
    """What a step takes by itself."""

    timing: Timing
    images: int
    """Views that a step makes."""
    captured: bool
    """Whether it ran as a CUDA graph."""
    first: float
    """Seconds from the data to the end of the first step."""
    peak: int | None
    """Most bytes of memory."""

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
    """What a step takes, beside what it takes otherwise and what it takes at least."""

    step: StepCost
    bare: Timing
    """The computation alone, as the device does it when it is never kept waiting."""
    loop: float
    """Steps a second of the training loop with its log, but without evaluations and checkpoints."""
    eager: Timing | None
    """Without a graph; None where there is none to go without."""
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
    """One method's settings with data to run them on."""

    def __init__(self, settings: RunSettings, effort: Effort) -> None:
        self.settings, self.effort = endless(settings), effort
        self.data, self.split = stand_in(settings)

    def step(self) -> tuple[StepCost, Trainer]:
        """What a step takes, and the state that took it, warm."""
        release()
        reset_peak(self.effort.device)
        started = time.perf_counter()
        state = self.build()
        state.step()
        synchronize(self.effort.device)
        first = time.perf_counter() - started
        warm(state)
        timing = time_calls(state.step, self.effort.device, self.effort.steps(state.step))
        return StepCost(
            timing, state.images_per_step, state.graph is not None, first, peak_bytes(self.effort.device)
        ), state

    def everything(self, *, stages: bool) -> MethodCost:
        """All there is to know about the step."""
        cost, state = self.step()
        bare = self.time_part(bare_step(state))
        loop = self.loop(state, cost.timing)
        eager = None
        if cost.captured:
            del state
            release()
            state = self.build(graph=False)
            warm(state)
            eager = self.time_part(state.step, ahead=False)
        pieces = Pieces(state)
        floor = find_floor(pieces)
        parts = measure_stages(pieces, self.effort, cost.timing.median) if stages else None
        return MethodCost(cost, bare, loop, eager, floor, parts)

    def build(self, *, graph: bool = True) -> Trainer:
        """A fresh state."""
        runtime = replace(self.settings.runtime, graph=graph and self.settings.runtime.graph)
        return Trainer(replace(self.settings, runtime=runtime), self.data, self.split, self.effort.device)

    def time_part(self, function: Callable[[], object], *, ahead: bool = True) -> Timing:
        """Time something that stands beside the step."""
        return time_calls(function, self.effort.device, self.effort.parts(function), ahead=ahead)

    def loop(self, state: Trainer, step: Timing) -> float:
        """Steps a second of `Run.train` from one log line to another, about as many steps later as were timed."""
        train, calls = self.settings.train, step.calls
        if self.effort.device.type != "cuda":  # a hundred steps until the next line may take an hour
            calls = min(calls, max(1, affordable(step.median)))
            train = replace(train, log_every=min(train.log_every, calls))
        marks: list[tuple[int, float]] = []
        with TemporaryDirectory() as folder:
            settings = replace(self.settings, train=train)
            run = Run(settings, self.data, self.split, RunFolder(Path(folder)), state)
            with closing(cast(Generator[dict[str, Any]], run.train())) as records:
                try:
                    for record in records:
                        marks.append((record["step"], time.perf_counter()))
                        if record["step"] - marks[0][0] >= calls:
                            break
                except Stopped:  # the loop took a Ctrl-C for a wish to save
                    raise KeyboardInterrupt from None
        (first_step, started), (last_step, ended) = marks[0], marks[-1]
        return (last_step - first_step) / (ended - started)


def bare_step(state: Trainer) -> Callable[[], object]:
    """The computation of a step and nothing else: the replay of its graph if it has one."""
    if state.graph is not None:
        return state.graph.replay
    return partial(state.run_step, *state.draw_indices())


def warm(state: Trainer) -> None:
    """Bring a state to where it is for most of a run: the queue full, everything chosen and captured."""
    if isinstance(state.method, AggMatch):
        fill_queue(state.method.queue)
    if state.device.type == "cuda":
        for _ in range(WARM_CALLS + 2):
            state.step()


@torch.no_grad()
def fill_queue(queue: ClassBalancedQueue) -> None:
    """Put random features and distributions into every slot."""
    queue.feature.copy_(F.normalize(torch.randn_like(queue.feature), dim=-1))
    queue.probs.copy_(torch.randn_like(queue.probs).mul(3).softmax(-1))
    queue.fill.fill_(queue.slots)


def endless(settings: RunSettings) -> RunSettings:
    """The same step in a run that neither ends, evaluates nor saves while it is measured.

    Its learning rate is next to nothing: random images could make the loss diverge, which ends a run.
    """
    return replace(
        settings,
        optim=replace(settings.optim, lr=1e-9),
        train=replace(settings.train, steps=max(settings.train.steps, 2**20), evaluate_every=NEVER),
        runtime=replace(settings.runtime, checkpoint_every=NEVER, snapshots=()),
    )


# Data ------------------------------------------------------------------------------------------------------------


def stand_in(settings: RunSettings, count: int | None = None) -> tuple[DataSet, Split]:
    """The data set itself if it comes with the package, or else random images of its shape; and its split.

    There are `count` random images, or as many as the data set has.
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
    """A sentence on what the steps were run on."""
    if not SOURCES.load(name).archives:
        return f"Images: {name}, which comes with the package."
    return f"Images: random ones in the shape and number of {name}; no file of it is needed or read."
