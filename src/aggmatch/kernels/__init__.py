"""Triton kernels behind the functions that call them."""

import warnings
from functools import cache

import torch

from aggmatch.devices import has_bfloat16


@cache
def triton_works() -> bool:
    """Whether Triton and the current GPU can do what the kernels ask; if not, one warning says what that costs."""
    try:
        import triton  # noqa: F401
    except ImportError as error:
        warnings.warn(f"Training runs without fused kernels, which is slower: {error}.", stacklevel=2)
        return False
    if torch.cuda.is_available() and not has_bfloat16(torch.device("cuda")):
        name = torch.cuda.get_device_name()
        warnings.warn(
            f"Training runs without fused kernels, which is slower: {name} is older than compute capability 8.0.",
            stacklevel=2,
        )
        return False
    return True


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes that the warps of a program can share: 99 KiB on most GPUs, 227 on an H100; on a CPU, no bound."""
    if device.type != "cuda":
        return 2**31
    from triton.runtime import driver

    number = torch.cuda.current_device() if device.index is None else device.index
    return int(driver.active.utils.get_device_properties(number)["max_shared_mem"])
