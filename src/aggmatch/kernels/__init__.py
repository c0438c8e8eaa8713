"""Triton kernels, and what they need from the GPU."""

import warnings
from functools import cache

import torch

from aggmatch.devices import has_bfloat16


@cache
def triton_works() -> bool:
    """Return whether Triton and the current GPU can run the kernels; if not, warn once that training is slower."""
    try:
        import triton  # noqa: F401
    except ImportError as error:
        reason = str(error)
    else:
        if not torch.cuda.is_available() or has_bfloat16(torch.device("cuda")):
            return True
        reason = f"{torch.cuda.get_device_name()} is older than compute capability 8.0"
    warnings.warn(f"Training runs without fused kernels, which is slower: {reason}.", stacklevel=2)
    return False


@cache
def shared_memory(device: torch.device) -> int:
    """Return the bytes of shared memory of a program: 99 KiB on most GPUs, 227 on an H100; on a CPU, no limit."""
    if device.type != "cuda":
        return 2**31
    from triton.runtime import driver

    number = torch.cuda.current_device() if device.index is None else device.index
    return int(driver.active.utils.get_device_properties(number)["max_shared_mem"])
