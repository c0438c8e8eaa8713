"""Where kernels can run: compiled on a GPU, or under Triton's interpreter on a CPU.

The interpreter has to be chosen before Triton is imported, so on a CPU a test file runs its kernel tests in a process
of their own.
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
"""A type of 16 bits; the interpreter multiplies no matrices of bfloat16."""


def runnable(test):
    """Mark a test of kernels: on a GPU one of those that `-m gpu` chooses, without one for the interpreter."""
    without = pytest.mark.skipif(not (on_gpu or interpreted), reason="needs a CUDA device or TRITON_INTERPRET=1")
    return pytest.mark.gpu(without(test))


outside = pytest.mark.skipif(interpreted or on_gpu, reason="already runs the kernels")


def check_under_interpreter(file: str, passed: int) -> None:
    """Run a test file under the interpreter; so many of its tests must pass and none fail."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT / "src")}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", file]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"\n{passed} passed" in done.stdout, done.stdout
