"""A lower bound of the time of a training step: its arithmetic and memory traffic at the best rates of this machine.

Arithmetic: the operations of all convolutions and matrix products of one step, counted at the calls of torch's
functions. Images without a backward pass count once; other work of Triton kernels (aggregation, normalisation) does not
count. The rate is that of a large matrix product in the same precision, timed in the same process.

Traffic: the output of each convolution and each BatchNorm of the backbone is written once and read once, and so is its
gradient for images with a backward pass. Weights, views and further reads in the backward pass do not count. The rate
is that of copying a large tensor, timed in the same process.

The floor is the larger of both bounds. Convolutions are counted in their direct form: an algorithm with fewer products
(Winograd) could be faster than the first bound, and activations that stay in a cache faster than the second.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from aggmatch.bench.stages import MOMENTUM, ONLINE, Call, Pieces
from aggmatch.bench.timing import call_times
from aggmatch.models import Network

SIDES = {"cuda": 8192, "cpu": 1024}
"""Type of device → rows and columns of the matrices in the timed product."""
COPIED = {"cuda": 2**29, "cpu": 2**26}
"""Type of device → bytes of the copied tensor."""
TRIES = 20


class Rates(NamedTuple):
    """The best measured rates of this machine."""

    flops: float
    """Operations per second of a matrix product; a multiplication and an addition count as two."""
    bytes: float
    """Bytes per second of a copy, read and written bytes together."""
    arithmetic: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"flops_per_second": self.flops, "bytes_per_second": self.bytes, "arithmetic": self.arithmetic}


@dataclass(frozen=True)
class Floor:
    """The arithmetic and the traffic of a step, and the least time they take."""

    flops: int
    bytes: int
    rates: Rates

    @property
    def compute(self) -> float:
        """Seconds of the arithmetic."""
        return self.flops / self.rates.flops

    @property
    def memory(self) -> float:
        """Seconds of the traffic."""
        return self.bytes / self.rates.bytes

    @property
    def seconds(self) -> float:
        """Lower bound of the seconds of a step."""
        return max(self.compute, self.memory)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "flops": self.flops,
            "bytes": self.bytes,
            "compute_ms": 1e3 * self.compute,
            "memory_ms": 1e3 * self.memory,
            "floor_ms": 1e3 * self.seconds,
            "rates": self.rates.to_dict(),
        }


def find_floor(pieces: Pieces) -> Floor:
    """Return the floor of a step; runs one step. The trainer must not use a CUDA graph."""
    trainer = pieces.trainer
    with plain_passes(trainer.online, trainer.average):
        flops = count_products(lambda: trainer.compute(*pieces.indices))
    calls = [(trainer.online, pieces.calls.get(ONLINE, [])), (trainer.average, pieces.calls.get(MOMENTUM, []))]
    bytes_ = sum(bytes_moved(network, made) for network, made in calls)
    return Floor(flops, bytes_, best_rates(trainer.device, arithmetic_of(trainer.online)))


# Arithmetic ------------------------------------------------------------------------------------------------------


@contextmanager
def plain_passes(*networks: Network) -> Iterator[None]:
    """Within, networks use only functions of torch, which can be counted."""
    fused = [network.backbone for network in networks if getattr(network.backbone, "fusible", False)]
    for backbone in fused:
        backbone.fusible = False  # type: ignore[assignment]
    try:
        yield
    finally:
        for backbone in fused:
            backbone.fusible = True  # type: ignore[assignment]


class ProductCounter(TorchDispatchMode):
    """Within, counts the operations of convolutions and matrix products, including backward passes."""

    # FlopCounterMode of torch also tracks modules, and fails for one that is called with and without gradients.

    flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if (formula := flop_registry.get(func._overloadpacket)) is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=result)
        return result


def count_products(function: Callable[[], object]) -> int:
    """Return the number of operations of convolutions and matrix products in a call."""
    with ProductCounter() as counter:  # type: ignore[no-untyped-call]
        function()
    return counter.flops


# Traffic ---------------------------------------------------------------------------------------------------------


class Pass(NamedTuple):
    """Arguments of `Network.forward`."""

    images: Tensor
    targets: int = 0


def bytes_moved(network: Network, calls: Iterable[Call]) -> int:
    """Return the bytes to write and read once the activations of forward passes and their gradients."""
    total = 0
    learns = any(parameter.requires_grad for parameter in network.parameters())
    for call in calls:
        images, targets = Pass(*call.arguments, **call.keywords)
        skipped = 0 if network.exact else targets
        learned = len(images) - skipped if call.gradient and learns else 0
        values = activation_values(network.backbone, images.shape[1:])
        total += 2 * arithmetic_of(network).itemsize * values * (len(images) + learned)
    return total


def activation_values(backbone: nn.Module, shape: torch.Size) -> int:
    """Return the number of output values of the convolutions and norms of a backbone for one image (C, H, W)."""
    probe = copy.deepcopy(backbone).to("meta").eval()  # only shapes, no values
    sizes: list[int] = []
    for module in probe.modules():
        if isinstance(module, (nn.Conv2d, _BatchNorm)):
            module.register_forward_hook(lambda _module, _inputs, output: sizes.append(output.numel()))
    with torch.no_grad():
        probe(torch.empty(1, *shape, device="meta"))
    return sum(sizes)


def arithmetic_of(network: Network) -> torch.dtype:
    """Return the type in which a network computes convolutions."""
    return torch.bfloat16 if network.mixed else torch.float32


# Rates of the machine --------------------------------------------------------------------------------------------


@cache
def best_rates(device: torch.device, arithmetic: torch.dtype) -> Rates:
    """Measure the best rates of arithmetic and copying; once per process."""
    side = SIDES[device.type]
    left, right = (torch.randn(side, side, device=device).to(arithmetic) for _ in range(2))
    product = torch.empty_like(left)
    with tensor_cores():
        flops = 2 * side**3 / fastest(lambda: torch.mm(left, right, out=product), device)
    source = torch.zeros(COPIED[device.type], dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    copied = 2 * len(source) / fastest(lambda: target.copy_(source), device)
    return Rates(flops, copied, str(arithmetic).removeprefix("torch."))


def fastest(function: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of the fastest of a few calls; the first two do not count."""
    return min(call_times(function, device, TRIES + 2)[2:])


@contextmanager
def tensor_cores() -> Iterator[None]:
    """Within, float32 matrix products may use tensor cores if convolutions may, which is the default."""
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = products.fp32_precision
    products.fp32_precision = convolutions.fp32_precision
    try:
        yield
    finally:
        products.fp32_precision = before
