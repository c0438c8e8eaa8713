"""The least that a training step can take here: its arithmetic and its traffic at the best rates of this machine.

Arithmetic is what the convolutions and matrix products of one step compute, counted as torch's functions are called:
images that learn nothing have no backward pass and so count once, and what Triton kernels do besides (aggregation,
normalisation) does not count. The rate is that of a large matrix product in the network's arithmetic, timed in the same
run.

Traffic is what every training step of this network has to move if activations do not stay in a cache: the output of
each convolution and each BatchNorm of the backbone is written once and read once, and so is its gradient for images
that learn. Weights, views and reading activations again in the backward pass are left out. The rate is that of copying
a large tensor, timed in the same run.

Both are lower bounds, of which the larger counts. Convolutions are counted by their direct form; an algorithm that
multiplies less (Winograd's) could go below the first, and activations that fit into a cache below the second.
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
from aggmatch.bench.timing import cuda_times, host_times
from aggmatch.models import Network

SIDES = {"cuda": 8192, "cpu": 1024}
"""Rows and columns of the matrices by which the arithmetic is timed."""
COPIED = {"cuda": 2**29, "cpu": 2**26}
"""Bytes of the tensor that is copied."""
TRIES = 20


class Rates(NamedTuple):
    """The best that this machine was seen to do."""

    flops: float
    """Operations a second of a matrix product; a multiplication and an addition are two."""
    bytes: float
    """Bytes a second of a copy, read and written ones together."""
    arithmetic: str

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "flops_per_second": self.flops,
            "bytes_per_second": self.bytes,
            "arithmetic": self.arithmetic,
        }


@dataclass(frozen=True)
class Floor:
    """The least that a step takes."""

    flops: int
    bytes: int
    rates: Rates

    @property
    def compute(self) -> float:
        """Seconds that the arithmetic takes."""
        return self.flops / self.rates.flops

    @property
    def memory(self) -> float:
        """Seconds that the traffic takes."""
        return self.bytes / self.rates.bytes

    @property
    def seconds(self) -> float:
        """Seconds that no step goes below."""
        return max(self.compute, self.memory)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "flops": self.flops,
            "bytes": self.bytes,
            "compute_ms": 1e3 * self.compute,
            "memory_ms": 1e3 * self.memory,
            "floor_ms": 1e3 * self.seconds,
            "rates": self.rates.to_dict(),
        }


def find_floor(pieces: Pieces) -> Floor:
    """The floor of a step of a state that is not captured; runs one."""
    state = pieces.state
    with plain_passes(state.online, state.average):
        flops = count_products(lambda: state.compute(*pieces.indices))
    calls = [(state.online, pieces.calls.get(ONLINE, [])), (state.average, pieces.calls.get(MOMENTUM, []))]
    bytes_ = sum(bytes_moved(network, made) for network, made in calls)
    return Floor(flops, bytes_, best_rates(state.device, arithmetic_of(state.online)))


# What is computed ------------------------------------------------------------------------------------------------


@contextmanager
def plain_passes(*networks: Network) -> Iterator[None]:
    """Within, networks compute by torch's functions alone, which can be counted."""
    fused = [network.backbone for network in networks if getattr(network.backbone, "fusible", False)]
    for backbone in fused:
        backbone.fusible = False  # type: ignore[assignment]
    try:
        yield
    finally:
        for backbone in fused:
            backbone.fusible = True  # type: ignore[assignment]


class ProductCounter(TorchDispatchMode):
    """Within, adds up the operations of convolutions and matrix products, backward passes included."""

    # torch's own FlopCounterMode also follows modules, and fails on one that is called with and without gradients.

    flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if (formula := flop_registry.get(func._overloadpacket)) is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=result)
        return result


def count_products(function: Callable[[], object]) -> int:
    """Operations of the convolutions and matrix products that a call computes."""
    with ProductCounter() as counter:  # type: ignore[no-untyped-call]
        function()
    return counter.flops


# What is moved ---------------------------------------------------------------------------------------------------


class Pass(NamedTuple):
    """Arguments of a forward pass, as `Network.forward` takes them."""

    images: Tensor
    targets: int = 0


def bytes_moved(network: Network, calls: Iterable[Call]) -> int:
    """Bytes that the activations of forward passes, and their gradients, take to write and read once."""
    total = 0
    learns = any(parameter.requires_grad for parameter in network.parameters())
    for call in calls:
        images, targets = Pass(*call.arguments, **call.keywords)
        learned = len(images) - targets if call.gradient and learns else 0
        values = activation_values(network.backbone, images.shape[1:])
        total += 2 * arithmetic_of(network).itemsize * values * (len(images) + learned)
    return total


def activation_values(backbone: nn.Module, shape: torch.Size) -> int:
    """Values that the convolutions and norms of a backbone put out for one image of shape (C, H, W)."""
    probe = copy.deepcopy(backbone).to("meta").eval()  # shapes alone: nothing is computed
    sizes: list[int] = []
    for module in probe.modules():
        if isinstance(module, (nn.Conv2d, _BatchNorm)):
            module.register_forward_hook(lambda _module, _inputs, output: sizes.append(output.numel()))
    with torch.no_grad():
        probe(torch.empty(1, *shape, device="meta"))
    return sum(sizes)


def arithmetic_of(network: Network) -> torch.dtype:
    """The type in which a network convolves."""
    return torch.bfloat16 if network.mixed else torch.float32


# What the machine can do -----------------------------------------------------------------------------------------


@cache
def best_rates(device: torch.device, arithmetic: torch.dtype) -> Rates:
    """Arithmetic and copying as fast as this machine was ever seen to do them, out of a few tries."""
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
    """Seconds of the fastest of a few calls, after two that do not count."""
    measure = cuda_times if device.type == "cuda" else host_times
    return min(measure(function, device, TRIES + 2, False)[2:])


@contextmanager
def tensor_cores() -> Iterator[None]:
    """Within, float32 products may use the tensor cores of a GPU where its convolutions may, as they do by default."""
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = products.fp32_precision
    products.fp32_precision = convolutions.fp32_precision
    try:
        yield
    finally:
        products.fp32_precision = before
