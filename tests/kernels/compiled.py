"""Compiling kernels for a GPU on a machine without one."""

from typing import Any

import pytest
from tests.interpreter import interpreted

triton = pytest.importorskip("triton")

compiles = pytest.mark.skipif(
    interpreted or "nvidia" not in triton.backends.backends, reason="needs Triton's compiler for CUDA"
)


def compiled(kernel: Any, types: dict[str, str], constants: dict[str, Any], **options: Any) -> str:
    """The kernel's assembly for an H100, once it has become a binary."""
    source = triton.compiler.ASTSource(kernel, types | dict.fromkeys(constants, "constexpr"), constants)
    result = triton.compile(source, target=triton.backends.compiler.GPUTarget("cuda", 90, 32), options=options)
    assert result.asm["cubin"]
    return result.asm["ptx"]
