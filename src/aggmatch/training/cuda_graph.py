"""Replays a function of device tensors as one CUDA graph after a few ordinary calls."""

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

WARM_CALLS = 3
"""Ordinary calls before the capture, in which cuDNN chooses its kernels and lazy buffers are allocated."""


class Captured:
    """Calls a function a few times, then captures it and replays the capture.

    function: takes tensors and changes its state in place, on the device. generator: its only source of random numbers.
    alone: False if other threads of the process may call CUDA during the capture, as those of NCCL do. If the capture
    fails, a warning gives the reason, and all further calls are ordinary ones.
    """

    def __init__(self, function: Callable[..., object], generator: torch.Generator, *, alone: bool = True) -> None:
        self.function, self.generator = function, generator
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.gave_up = False
        self.error_mode = "global" if alone else "thread_local"
        self.inputs: tuple[Tensor, ...] = ()
        # One stream for the warm calls and the capture: the allocator keeps a pool of memory per stream.
        self.stream = torch.cuda.Stream(generator.device)

    def __call__(self, *inputs: Tensor) -> None:
        """Do what `function(*inputs)` does."""
        if self.gave_up:
            self.function(*inputs)
            return
        if not self.inputs:
            self.inputs = tuple(value.clone() for value in inputs)
        for kept, value in zip(self.inputs, inputs, strict=True):
            kept.copy_(value)
        if self.graph is None and self.calls < WARM_CALLS:
            self.calls += 1
            self.call_on_stream()
            return
        if self.graph is None and not self.capture():
            self.function(*inputs)
            return
        assert self.graph is not None
        self.graph.replay()

    def call_on_stream(self) -> None:
        """Make an ordinary call on the stream of the capture."""
        current = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            self.function(*self.inputs)
        current.wait_stream(self.stream)

    def capture(self) -> bool:
        """Record the function without running it; return False if that fails."""
        graph = torch.cuda.CUDAGraph()
        generators = self.generator, torch.cuda.default_generators[self.stream.device.index]
        untouched = [generator.clone_state() for generator in generators]
        graph.register_generator_state(self.generator)
        current = torch.cuda.current_stream(self.stream.device)
        try:
            recording = torch.cuda.graph(graph, stream=self.stream, capture_error_mode=self.error_mode)
            with no_collection(), torch.cuda.stream(current), recording:
                self.function(*self.inputs)
        except RuntimeError as error:
            self.gave_up = True
            for generator, state in zip(generators, untouched, strict=True):
                generator.graphsafe_set_state(state)  # otherwise it stays in capture mode
            first = error.__context__ or error  # not the later error from ending the capture
            reason = next(iter(str(first).splitlines()), type(first).__name__)
            warnings.warn(f"The step runs without a CUDA graph, which is slower: {reason}", stacklevel=3)
            return False
        self.graph = graph
        return True


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect garbage now, and none in the block: if the collector destroys a graph, a running capture fails."""
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
