"""Which device computes, and what it is called."""

import platform
import re

import torch

from aggmatch.errors import AggMatchError


def choose_device(name: str) -> torch.device:
    """The named device, or the best there is for `auto`; of several GPUs it becomes the one that Triton launches on."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise AggMatchError(f"runtime.device must be auto, cpu, cuda or cuda:N, got '{name}'.")
    device = torch.device(name)
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise AggMatchError(
            f"runtime.device is '{name}', but this machine has {torch.cuda.device_count()} CUDA devices. "
            f"Try --device cpu."
        )
    if device.index is not None:
        torch.cuda.set_device(device)
    return device


def hardware(device: torch.device) -> str:
    """Name of what it ran on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{platform.processor() or platform.machine()} CPU, {threads} thread{'' if threads == 1 else 's'}"
