"""The parts of a training step, each timed as a piece of its own.

The step itself is left as it is. One step is run with a few functions watched, which gives the calls that the method
makes of them with all arguments; a piece is such a call, made again. On CUDA every piece is a graph of its own. Pieces
that are timed apart need not add up to the step: what one of them finds in the cache another has to read.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from aggmatch.bench.timing import Effort, Timing, captured, time_calls
from aggmatch.methods import Batch
from aggmatch.methods.aggmatch.method import AggMatch
from aggmatch.training.optim import average_decay, update_average
from aggmatch.training.trainer import Trainer

ONLINE, MOMENTUM, OPTIMIZER = "online forward", "momentum forward", "optimizer"


@dataclass(frozen=True, eq=False)
class Call:
    """A call that was made, to be made again for its cost."""

    function: Callable[..., object]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    gradient: bool
    """Whether gradients were recorded."""

    def __call__(self) -> None:
        """Make it."""
        with torch.set_grad_enabled(self.gradient):
            self.function(*self.arguments, **self.keywords)


@contextmanager
def watched(owner: object, name: str) -> Iterator[list[Call]]:
    """Within, collect the calls of a method of `owner`."""
    function = getattr(owner, name)
    calls: list[Call] = []

    def note(*arguments: Any, **keywords: Any) -> object:
        constants = {key: constant(value) for key, value in keywords.items()}
        calls.append(Call(function, tuple(map(constant, arguments)), constants, torch.is_grad_enabled()))
        return function(*arguments, **keywords)

    setattr(owner, name, note)  # on the object, where it hides the class's
    try:
        yield calls
    finally:
        delattr(owner, name)


def constant(value: Any) -> Any:
    """The value without a memory of how it was computed."""
    return value.detach() if isinstance(value, Tensor) else value


def watch_step(state: Trainer, batch: Batch) -> dict[str, list[Call]]:
    """The calls that the method makes in one step, by the name of the stage they are."""
    functions: dict[str, tuple[object, str]] = {
        ONLINE: (state.online, "forward"),
        MOMENTUM: (state.average, "forward"),
    }
    if isinstance(state.method, AggMatch):
        functions |= {
            "enqueue": (state.method.queue, "enqueue"),
            "split": (state.method, "deal"),
            "aggregation": (state.method, "attend"),
        }
    with ExitStack() as stack:
        calls = {stage: stack.enter_context(watched(*function)) for stage, function in functions.items()}
        state.method.step(batch, state.online, state.average)
    return {stage: made for stage, made in calls.items() if made}


class Pieces:
    """What a step is made of, as functions without arguments that can be called again and again."""

    def __init__(self, state: Trainer) -> None:
        self.state = state
        self.indices = state.draw_indices()
        self.batch = state.make_batch(*self.indices)
        self.calls = watch_step(state, self.batch)
        self.loss().backward()
        self.gradients = {weight: weight.grad for weight in state.online.parameters() if weight.grad is not None}
        self.forget_gradients()
        self.still = torch.zeros((), device=state.device)

    def loss(self) -> Tensor:
        """The method's own part: forward passes, targets, loss."""
        return self.state.method.step(self.batch, self.state.online, self.state.average).loss

    def forget_gradients(self) -> None:
        """Leave the parameters as a step leaves them."""
        for parameter in self.state.online.parameters():
            parameter.grad = None

    def apart(self) -> dict[str, Callable[[], None]]:
        """The stages that can be run by themselves, in the order of the step."""
        made = {stage: partial(make, calls) for stage, calls in self.calls.items()}
        return {"views": self.views, **made, OPTIMIZER: self.optimize, "average": self.update}

    def views(self) -> None:
        """Gather the images and make their views."""
        self.state.make_batch(*self.indices)

    def optimize(self) -> None:
        """The optimizer with gradients of one step, at a learning rate of 0 so that weights stay where they are."""
        for parameter, gradient in self.gradients.items():
            parameter.grad = gradient
        self.state.optimizer.step(self.still)

    def update(self) -> None:
        """The average of the weights."""
        state = self.state
        decay = average_decay(state.settings.optim, state.step_counter)
        copied = state.method.average_statistics == "copied"
        update_average(state.average, state.online, decay, copy_statistics=copied)

    def forward(self) -> None:
        """The loss alone; with `learn`, what the backward pass is told from."""
        self.loss()

    def learn(self) -> None:
        """The loss and its backward pass."""
        self.loss().backward()
        self.forget_gradients()


def make(calls: list[Call]) -> None:
    """Make calls again, one after the other."""
    for call in calls:
        call()


@dataclass(frozen=True)
class Stage:
    """What a part of the step takes."""

    name: str
    seconds: float
    timing: Timing | None = None
    """None for what is told from a difference."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        spread = self.timing.to_dict() if self.timing else {"p5_ms": None, "p95_ms": None, "calls": None}
        return {"stage": self.name, **spread, "median_ms": 1e3 * self.seconds}


def measure_stages(pieces: Pieces, effort: Effort, step: float) -> list[Stage]:
    """All stages, then what is left of the seconds of a step.

    A backward pass needs its forward pass, so it is the difference between the two together and the one alone.
    """

    def measure(piece: Callable[[], None]) -> Timing:
        ready = captured(piece, pieces.state.generator)
        return time_calls(ready, effort.device, effort.parts(ready), ahead=True)

    backward = Stage("backward", max(0.0, measure(pieces.learn).median - measure(pieces.forward).median))
    stages = []
    for name, piece in pieces.apart().items():
        if name == OPTIMIZER:
            stages.append(backward)
        timing = measure(piece)
        stages.append(Stage(name, timing.median, timing))
    return [*stages, Stage("other", step - sum(stage.seconds for stage in stages))]
