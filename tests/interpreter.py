"""Where kernel tests run: compiled on a GPU, or in Triton's interpreter on a CPU.

The interpreter must be chosen before Triton is imported, so on a CPU a test file runs its kernel tests in a separate
process.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]

on_gpu = torch.cuda.is_available()
interpreted = os.environ.get("TRITON_INTERPRET") == "1"
device = "cuda" if on_gpu else "cpu"
SHORT = torch.bfloat16 if on_gpu else torch.float16
"""A type of 16 bits. The interpreter cannot multiply matrices of bfloat16."""


def runnable(test):
    """Mark a test of kernels: `-m gpu` selects it on a GPU; without one it runs only in the interpreter."""
    without = pytest.mark.skipif(not (on_gpu or interpreted), reason="needs a CUDA device or TRITON_INTERPRET=1")
    return pytest.mark.gpu(without(test))


outside = pytest.mark.skipif(interpreted or on_gpu, reason="the kernels already run")


def check_in_interpreter(file: str, passed: int) -> None:
    """Run a test file in the interpreter; exactly `passed` of its tests must pass and none may fail."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT / "src")}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", file]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"\n{passed} passed" in done.stdout, done.stdout
