"""A function of device tensors, replayed as one CUDA graph once it is warm."""

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

WARM_CALLS = 3
"""Ordinary calls before the capture: they let cuDNN choose its kernels and lazy buffers come to be."""


class Captured:
    """Calls `function` as it is a few times, then captures it and replays the capture.

    The function must read its arguments and change its state in place, on the device, with random numbers from
    `generator` alone. Where it cannot be captured, it goes on being called as it is, after one warning.
    """

    def __init__(self, function: Callable[..., None], generator: torch.Generator) -> None:
        self.function, self.generator = function, generator
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.gave_up = False
        self.inputs: tuple[Tensor, ...] = ()
        # One stream for all warm calls and the capture: the allocator keeps memory apart for each.
        self.stream = torch.cuda.Stream(generator.device)

    def __call__(self, *inputs: Tensor) -> None:
        """The effect of `function(*inputs)`."""
        if self.gave_up:
            self.function(*inputs)
            return
        if not self.inputs:
            self.inputs = tuple(value.clone() for value in inputs)
        for kept, value in zip(self.inputs, inputs, strict=True):
            kept.copy_(value)
        if self.graph is None and self.calls < WARM_CALLS:
            self.calls += 1
            self.call_aside()
            return
        if self.graph is None and not self.capture():
            self.function(*inputs)
            return
        assert self.graph is not None
        self.graph.replay()

    def call_aside(self) -> None:
        """An ordinary call, on the stream of the capture."""
        current = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            self.function(*self.inputs)
        current.wait_stream(self.stream)

    def capture(self) -> bool:
        """Record the function without running it; False if that cannot be done."""
        graph = torch.cuda.CUDAGraph()
        generators = self.generator, torch.cuda.default_generators[self.stream.device.index]
        untouched = [generator.clone_state() for generator in generators]
        graph.register_generator_state(self.generator)
        current = torch.cuda.current_stream(self.stream.device)
        try:
            with no_collection(), torch.cuda.stream(current), torch.cuda.graph(graph, stream=self.stream):
                self.function(*self.inputs)
        except RuntimeError as error:
            self.gave_up = True
            for generator, state in zip(generators, untouched, strict=True):
                generator.graphsafe_set_state(state)  # else it takes the capture for going on
            first = error.__context__ or error  # not the one of ending the capture
            reason = next(iter(str(first).splitlines()), type(first).__name__)
            warnings.warn(f"The step runs without a CUDA graph, which is slower: {reason}", stacklevel=3)
            return False
        self.graph = graph
        return True


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect garbage now and none within: an older graph that the collector destroys spoils a capture under way."""
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
