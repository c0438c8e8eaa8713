"""Benchmark of the aggregation alone, in the shapes of the paper's data sets: the fused kernel and the plain form."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from aggmatch.bench.timing import Effort, captured, release
from aggmatch.methods.aggmatch.aggregation import fused_sums, reference_sums

OPTIONS: dict[str, Any] = {"temperature": 0.05, "feature_term": True, "class_term": "divergence", "class_weight": 0.5}


class Shape(NamedTuple):
    """The size of an aggregation."""

    name: str
    classes: int
    slots: int
    """L: slots per class."""
    subsets: int
    queries: int
    features: int

    @property
    def logarithms(self) -> int:
        """Number of logarithms of mixtures, one for each query, slot and class."""
        return self.queries * self.classes * self.slots * self.classes


SHAPES = {
    "cuda": (
        Shape("CIFAR-10, SVHN", classes=10, slots=2048, subsets=64, queries=448, features=128),
        Shape("CIFAR-100", classes=100, slots=256, subsets=64, queries=336, features=512),
        Shape("1,000 classes", classes=1000, slots=64, subsets=64, queries=448, features=512),
    ),
    "cpu": (Shape("digits", classes=10, slots=64, subsets=8, queries=210, features=64),),
}
"""Type of device → shapes. On a CPU, the plain form would take minutes in the paper's shapes."""


def measure_aggregation(shape: Shape, effort: Effort) -> dict[str, Any]:
    """Return times and memory of both forms, for JSON. A form is None if it is unavailable or needs too much memory."""
    case = random_case(shape, effort.device)
    kernel = fused_sums(shape.classes, effort.device) if effort.device.type == "cuda" else reference_sums
    fused = measure_form(partial(kernel, *case, **OPTIONS), effort) if kernel is not reference_sums else None
    plain = measure_form(partial(reference_sums, *case, **OPTIONS), effort)
    best = fused or plain
    return {
        **shape._asdict(),
        "logarithms": shape.logarithms,
        "fused": fused,
        "plain": plain,
        "plain_over_fused": plain["median_ms"] / fused["median_ms"] if plain and fused else None,
        "logarithms_per_second": 1e3 * shape.logarithms / best["median_ms"] if best else None,
    }


def random_case(shape: Shape, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the arguments of `reference_sums`: random queries, a full queue, and its split into subsets."""
    generator = torch.Generator(device).manual_seed(0)
    count = shape.classes * shape.slots
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

    def features(rows: int) -> Tensor:
        return F.normalize(torch.randn(rows, shape.features, generator=generator, device=device), dim=-1).to(dtype)

    def probs(rows: int) -> Tensor:
        return torch.randn(rows, shape.classes, generator=generator, device=device).mul(3).softmax(-1)

    slot_MS = torch.randperm(count, generator=generator, device=device).view(shape.subsets, -1)
    return features(shape.queries), probs(shape.queries), features(count), probs(count), slot_MS


def measure_form(form: Callable[[], object], effort: Effort) -> dict[str, Any] | None:
    """Return the time of one form and its memory in addition to its arguments; None if the memory is too small."""
    release()
    try:
        extra = extra_bytes(form, effort.device)
        timing = effort.time_part(captured(form, torch.Generator(effort.device)))
    except torch.OutOfMemoryError:
        return None
    return {**timing.to_dict(), "extra_memory_bytes": extra}


def extra_bytes(form: Callable[[], object], device: torch.device) -> int | None:
    """Return the peak memory of a call in addition to the memory held before it; None if not on CUDA."""
    if device.type != "cuda":
        return None
    form()  # compiles the kernel, which may need memory too
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    form()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
