"""The stages of a training step, each timed separately.

One step runs while some functions record their calls and arguments; a stage repeats these calls. On CUDA every stage is
its own graph. The times of separate stages need not add up to the step: in the step, a stage may find data in the cache
that it otherwise reads from memory.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from aggmatch.bench.timing import Effort, Timing, captured
from aggmatch.methods import Batch
from aggmatch.methods.aggmatch.method import AggMatch
from aggmatch.training.optim import average_decay, update_average
from aggmatch.training.trainer import Trainer

ONLINE, MOMENTUM, OPTIMIZER = "online forward", "momentum forward", "optimizer"


@dataclass(frozen=True, eq=False)
class Call:
    """A recorded call, which can be repeated."""

    function: Callable[..., object]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    gradient: bool
    """Whether gradients were enabled."""

    def __call__(self) -> None:
        """Repeat the call."""
        with torch.set_grad_enabled(self.gradient):
            self.function(*self.arguments, **self.keywords)


@contextmanager
def watched(owner: object, name: str) -> Iterator[list[Call]]:
    """Within, record the calls of a method of `owner`."""
    function = getattr(owner, name)
    calls: list[Call] = []

    def note(*arguments: Any, **keywords: Any) -> object:
        constants = {key: constant(value) for key, value in keywords.items()}
        calls.append(Call(function, tuple(map(constant, arguments)), constants, torch.is_grad_enabled()))
        return function(*arguments, **keywords)

    setattr(owner, name, note)  # on the object, where it hides that of the class
    try:
        yield calls
    finally:
        delattr(owner, name)


def constant(value: Any) -> Any:
    """Return the value without its gradient history."""
    return value.detach() if isinstance(value, Tensor) else value


def watch_step(trainer: Trainer, batch: Batch) -> dict[str, list[Call]]:
    """Run the method's part of one step; return stage → the calls it made."""
    functions: dict[str, tuple[object, str]] = {
        ONLINE: (trainer.online, "forward"),
        MOMENTUM: (trainer.average, "forward"),
    }
    if isinstance(trainer.method, AggMatch):
        functions |= {
            "enqueue": (trainer.method.queue, "enqueue"),
            "split": (trainer.method, "split"),
            "aggregation": (trainer.method, "attend"),
        }
    with ExitStack() as stack:
        calls = {stage: stack.enter_context(watched(*function)) for stage, function in functions.items()}
        trainer.method.step(batch, trainer.online, trainer.average)
    return {stage: made for stage, made in calls.items() if made}


class Pieces:
    """The stages of a step as functions without arguments, which can be repeated."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.indices = trainer.next_inputs()
        self.batch = trainer.make_batch(*self.indices)
        self.calls = watch_step(trainer, self.batch)
        self.loss().backward()
        self.gradients = {weight: weight.grad for weight in trainer.online.parameters() if weight.grad is not None}
        self.forget_gradients()
        self.still = torch.zeros((), device=trainer.device)

    def loss(self) -> Tensor:
        """Compute the method's part of the step: forward passes, targets, loss."""
        return self.trainer.method.step(self.batch, self.trainer.online, self.trainer.average).loss

    def forget_gradients(self) -> None:
        """Remove all gradients, as a step does."""
        for parameter in self.trainer.online.parameters():
            parameter.grad = None

    def stages(self) -> dict[str, Callable[[], None]]:
        """Return the stages that can run alone, in the order of the step."""
        repeated = {stage: partial(repeat, calls) for stage, calls in self.calls.items()}
        return {"views": self.views, **repeated, OPTIMIZER: self.optimize, "average": self.update}

    def views(self) -> None:
        """Gather the images and make their views."""
        self.trainer.make_batch(*self.indices)

    def optimize(self) -> None:
        """Run the optimizer with the gradients of one step; a learning rate of 0 keeps the weights."""
        for parameter, gradient in self.gradients.items():
            parameter.grad = gradient
        self.trainer.optimizer.step(self.still)

    def update(self) -> None:
        """Update the average of the weights."""
        trainer = self.trainer
        decay = average_decay(trainer.settings.optim, trainer.step_counter)
        copied = trainer.method.average_statistics == "copied"
        update_average(trainer.average, trainer.online, decay, copy_statistics=copied)

    def learn(self) -> None:
        """Compute the loss and its backward pass, which is the difference between this and `loss`."""
        self.loss().backward()
        self.forget_gradients()


def repeat(calls: list[Call]) -> None:
    """Repeat recorded calls in order."""
    for call in calls:
        call()


@dataclass(frozen=True)
class Stage:
    """The time of one stage."""

    name: str
    seconds: float
    timing: Timing | None = None
    """None if the time is a difference."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        spread = self.timing.to_dict() if self.timing else {"p5_ms": None, "p95_ms": None, "calls": None}
        return {"stage": self.name, **spread, "median_ms": 1e3 * self.seconds}


def measure_stages(pieces: Pieces, effort: Effort, step: float) -> list[Stage]:
    """Time all stages; the last one, `other`, is the rest of the `step` seconds.

    A backward pass cannot run alone: its time is that of forward and backward pass minus that of the forward pass.
    """

    def measure(stage: Callable[[], object]) -> Timing:
        return effort.time_part(captured(stage, pieces.trainer.generator))

    backward = Stage("backward", max(0.0, measure(pieces.learn).median - measure(pieces.loss).median))
    stages = []
    for name, stage in pieces.stages().items():
        if name == OPTIMIZER:
            stages.append(backward)
        timing = measure(stage)
        stages.append(Stage(name, timing.median, timing))
    return [*stages, Stage("other", step - sum(stage.seconds for stage in stages))]
