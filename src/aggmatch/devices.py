"""Which device computes, with how many threads, and the hardware and versions that a result names."""

import ctypes
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from aggmatch import __version__
from aggmatch.errors import AggMatchError

SMALL = 500_000
"""Number of weights below which a network trains faster with one thread: several would mostly wait for each other."""

MALLOC_SETTINGS = {-3: 2**30, -1: 2**31 - 1}
"""Settings of glibc's `mallopt`: from how many bytes on a block goes back to the system when it is freed
(M_MMAP_THRESHOLD), and how many free bytes at the end of the heap do (M_TRIM_THRESHOLD)."""

CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
"""Folder of all control groups (version 2), and the file that lists those of this process."""


def choose_device(name: str) -> torch.device:
    """Return the device called `name` (`cpu`, `cuda`, `cuda:N`), or the best one of this machine for `auto`.

    Raises an `AggMatchError` if this machine does not have the device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", name):
        raise AggMatchError(f"runtime.device must be auto, cpu, cuda or cuda:N, got '{name}'.")
    device = torch.device(name)
    count = torch.cuda.device_count()
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= count):
        devices = "1 CUDA device" if count == 1 else f"{count} CUDA devices"
        problem = f"runtime.device is '{name}', but this machine has {devices}. Try cpu."
        raise AggMatchError(problem, options="--device cpu")
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def choose_threads(wanted: int, network: nn.Module) -> int:
    """Return the number of CPU threads for a network.

    wanted: the setting `runtime.threads`. 0 means one thread for a small network, and torch's own number otherwise.
    """
    if wanted:
        return wanted
    return 1 if sum(weight.numel() for weight in network.parameters()) < SMALL else torch.get_num_threads()


def search_pays(network: nn.Module) -> bool:
    """Whether cuDNN should time all its kernels for each layer: not with depthwise layers, where that takes minutes."""
    return not any(isinstance(layer, nn.Conv2d) and layer.groups > 1 for layer in network.modules())


@contextmanager
def computing_on(device: torch.device, threads: int = 0, *, search: bool = True) -> Iterator[None]:
    """Within, the device is the current one, and CPU work uses this number of threads.

    threads: 0 leaves their number unchanged; on CUDA it is not used. search: whether cuDNN times its kernels at the
    first use of each shape and takes the fastest. All of these are settings of the whole process. They are restored at
    the end, so runs in one process do not disturb each other. From the first CPU work on, the process also keeps the
    memory that it frees (`keep_freed_memory`).

    Example: `with computing_on(torch.device("cpu"), threads=1): network(images)`.
    """
    if device.type == "cuda":
        benchmark = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = search
        try:
            with torch.cuda.device(device):
                yield
        finally:
            torch.backends.cudnn.benchmark = benchmark
        return
    keep_freed_memory()
    before = torch.get_num_threads()
    if threads in (0, before):
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def keep_freed_memory() -> None:
    """Make glibc keep large blocks that are freed, for the rest of the process; `return_freed_memory` returns them.

    By default glibc returns blocks above 32 MB to the system at once. Every step would then get new ones, whose pages
    the system clears first: up to half of the time of a step with large activations.
    """
    for setting, value in MALLOC_SETTINGS.items():
        c_library("mallopt", setting, value)


def return_freed_memory() -> None:
    """Return the memory that a process has freed to the system, such as after training on a CPU."""
    c_library("malloc_trim", 0)


def c_library(function: str, *numbers: int) -> None:
    """Call a function of the C library with integers, if it has it: only glibc has those above."""
    with suppress(AttributeError):
        getattr(ctypes.CDLL(None), function)(*numbers)


def free_memory(device: torch.device) -> int:
    """Return the bytes that this process may still take on a device; on a CPU, at most those that its container allows.

    Example: `free_memory(torch.device("cpu")) / 2**30`.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        available = numbers_of(Path("/proc/meminfo"))["MemAvailable:"] * 1024
    except (OSError, KeyError):  # not Linux
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([available, *container_memory()])


def container_memory() -> Iterator[int]:
    """Yield the bytes that each of the control groups of this process may still take; cached files do not count."""
    with suppress(OSError):
        for line in OWN_CGROUPS.read_text().splitlines():
            group = CGROUPS / line.rpartition(":")[2].lstrip("/")
            for folder in (group, *group.parents):
                with suppress(OSError, KeyError, ValueError):  # the root has no limit, and "max" is none
                    limit = int((folder / "memory.max").read_text())
                    used = int((folder / "memory.current").read_text())
                    yield max(limit - used + numbers_of(folder / "memory.stat")["file"], 0)


def numbers_of(file: Path) -> dict[str, int]:
    """Return the numbers of a file of the system by the word before each, one in a line."""
    words = (line.split() for line in file.read_text().splitlines())
    return {name: int(value) for name, value, *_ in words}


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device has bfloat16 arithmetic, as GPUs do since compute capability 8.0 (Ampere)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def computes_in_bfloat16(precision: str, device: torch.device) -> bool:
    """Whether networks compute in bfloat16 on a device. precision: the setting `train.precision`."""
    return precision == "bfloat16" or (precision == "auto" and has_bfloat16(device))


def hardware(device: torch.device, threads: int = 0) -> str:
    """Return the name of the device; for a CPU with the number of threads (0: torch's own number)."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = threads or torch.get_num_threads()
    return f"{platform.processor() or platform.machine()} CPU, {threads} thread{'' if threads == 1 else 's'}"


def provenance(device: torch.device, threads: int, processes: int = 1) -> dict[str, Any]:
    """Return the hardware and the versions with which a result is computed, as summaries and sessions store them.

    processes: their number, each of which has such a device.
    """
    several = f"{processes} × " if processes > 1 else ""
    versions = {"aggmatch": __version__, "torch": torch.__version__, "python": platform.python_version()}
    return {"hardware": several + hardware(device, threads), "versions": versions}


# Side stream ---------------------------------------------------------------------------------------------------------


class SideWork:
    """Work that was started on a side stream. Call `join` before you use its results."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        self.stream = stream

    def join(self) -> None:
        """Make the current stream wait for the work; the host does not wait."""
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)


@contextmanager
def side_stream(device: torch.device, *, parallel: bool = True) -> Iterator[SideWork]:
    """Run the block on a side stream, in parallel with the code after it, until `join`.

    On a CPU, and without `parallel`, it just runs.

    Small kernels of one stream fill the gaps of the other. The side stream first waits for all earlier work, so it does
    not write early to memory that the previous step has freed. For the same reason, do not free tensors that the block
    reads before `join`.

    Example: `with side_stream(x.device) as work: y = f(x)`, then `z = g(x)`, `work.join()` and `y + z`.
    """
    if device.type != "cuda" or not parallel:
        yield SideWork(None)
        return
    stream = stream_of(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield SideWork(stream)


@cache
def stream_of(device: torch.device) -> torch.cuda.Stream:
    """Return the one side stream of a device. There is only one because the allocator keeps a pool for each stream."""
    return torch.cuda.Stream(device)
