"""Triton kernels behind the functions that call them."""

import warnings
from functools import cache


@cache
def triton_works() -> bool:
    """Whether Triton can be imported; where it is asked for and cannot, one warning says what that costs."""
    try:
        import triton  # noqa: F401
    except ImportError as error:
        warnings.warn(f"Training runs without fused kernels, and so slower: {error}.", stacklevel=2)
        return False
    return True
