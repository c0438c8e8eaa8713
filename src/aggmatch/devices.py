"""Which device computes, with how many threads, and what it is called."""

import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from aggmatch.errors import AggMatchError

SMALL = 500_000
"""Weights of a network below which several threads wait for each other longer than they compute."""


def choose_device(name: str) -> torch.device:
    """The device called `name` (`cpu`, `cuda`, `cuda:N`), or for `auto` the best one of this machine."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise AggMatchError(f"runtime.device must be auto, cpu, cuda or cuda:N, got '{name}'.")
    device = torch.device(name)
    count = torch.cuda.device_count()
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= count):
        devices = "1 CUDA device" if count == 1 else f"{count} CUDA devices"
        raise AggMatchError(f"runtime.device is '{name}', but this machine has {devices}. Try --device cpu.")
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def choose_threads(wanted: int, network: nn.Module) -> int:
    """CPU threads for a network: `wanted`, or for 0 one if it is small and torch's own number otherwise."""
    if wanted:
        return wanted
    return 1 if sum(weight.numel() for weight in network.parameters()) < SMALL else torch.get_num_threads()


@contextmanager
def computing_on(device: torch.device, threads: int = 0) -> Iterator[None]:
    """Within, Triton launches on the device, cuDNN tries its kernels, and CPU work takes `threads` (0: unchanged).

    All of these are settings of the whole process. They are put back, so that runs in one process do not disturb each
    other.
    """
    if device.type == "cuda":
        benchmark = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = True  # shapes never change, so the choice of kernels pays
        try:
            with torch.cuda.device(device):
                yield
        finally:
            torch.backends.cudnn.benchmark = benchmark
        return
    before = torch.get_num_threads()
    if threads in (0, before):
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device has bfloat16 arithmetic, as GPUs do since compute capability 8.0 (Ampere)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def hardware(device: torch.device, threads: int = 0) -> str:
    """The name of the device and, for a CPU, the number of threads (0: torch's own)."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = threads or torch.get_num_threads()
    return f"{platform.processor() or platform.machine()} CPU, {threads} thread{'' if threads == 1 else 's'}"
