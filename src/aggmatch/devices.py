"""Which device computes, and what it is called."""

import platform
import re

import torch

from aggmatch.errors import AggMatchError


def choose_device(name: str) -> torch.device:
    """The named device, or the best there is for `auto`; of several GPUs it becomes the one that Triton launches on."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise AggMatchError(f"runtime.device must be auto, cpu, cuda or cuda:N, got '{name}'.")
    device = torch.device(name)
    count = torch.cuda.device_count()
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= count):
        devices = "1 CUDA device" if count == 1 else f"{count} CUDA devices"
        raise AggMatchError(f"runtime.device is '{name}', but this machine has {devices}. Try --device cpu.")
    if device.index is not None:
        torch.cuda.set_device(device)
    return torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" else device


def has_bfloat16(device: torch.device) -> bool:
    """Whether it computes in bfloat16 by itself, as GPUs do since compute capability 8.0 (Ampere)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def hardware(device: torch.device) -> str:
    """Name of what it ran on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{platform.processor() or platform.machine()} CPU, {threads} thread{'' if threads == 1 else 's'}"
