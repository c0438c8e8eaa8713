"""The training pass of a wide residual network on CUDA, with forward and backward written out.

It computes the same as `WideResNet.forward` in fewer passes over the activations: BatchNorm, activation and residual
sum are fused (`kernels.norm`), and convolutions of few channels have their own kernels (`kernels.convolve`). All images
share each launch, although only some of them have a backward pass. It needs no minute-long compilation.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aggmatch.kernels.convolve import convolve_and_measure, convolve_back, is_narrow, kernel_gradient
from aggmatch.kernels.finish import Moments
from aggmatch.kernels.norm import measure, normalize, normalize_backward
from aggmatch.models.target_only import SLOPE
from aggmatch.models.wide_resnet import Block, WideResNet


def fused_features(network: WideResNet, x: Tensor, targets: int = 0) -> Tensor:
    """Return features (B, D) of images (B, C, H, W), channels last; the last `targets` images get no gradient."""
    learning = torch.is_grad_enabled() and network.stem.weight.requires_grad
    learned = len(x) - targets if learning else 0
    return FusedPass.apply(x, learned, network, *network.parameters())  # type: ignore[no-untyped-call]


class FusedPass(torch.autograd.Function):
    """The pass as one autograd function of the network's parameters; the images get no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, learned: int, network: WideResNet, *_: Tensor) -> Tensor:
        """Return features, and keep what the backward pass needs for the first `learned` images."""
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
        ctx.tape = Tape(network, dtype, learned)
        with torch.autocast("cuda", enabled=False):
            return run_forward(network, x.to(dtype), ctx.tape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the parameters."""
        tape: Tape = ctx.tape
        run_backward(tape.network, gradients[0], tape)
        return None, None, None, *tape.gradients()


class Normalized(NamedTuple):
    """A normalisation on the tape: its input and output, and the moments of the whole batch."""

    x: Tensor
    y: Tensor
    moments: Moments


class Tape:
    """Kernels in the type to compute in, what the forward pass keeps for the backward pass, and the gradients."""

    def __init__(self, network: WideResNet, dtype: torch.dtype, learned: int) -> None:
        self.network, self.learned = network, learned
        convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
        weights = [module.weight.detach().contiguous(memory_format=torch.channels_last) for module in convolutions]
        self.kernel = dict(zip(convolutions, cast(weights, dtype), strict=True))
        self.normalized: dict[nn.Module, Normalized] = {}
        self.gradient: dict[Tensor, Tensor] = {}
        self.images = torch.empty(0)

    def convolve(self, layer: nn.Conv2d, x: Tensor) -> Tensor:
        """Return the layer's output."""
        return F.conv2d(x, self.kernel[layer], None, layer.stride, layer.padding)

    def convolve_into(
        self, norm: nn.BatchNorm2d, layer: nn.Conv2d, x: Tensor, residual: Tensor | None = None
    ) -> tuple[Tensor, Moments]:
        """Return the layer's output + residual, and its moments for the norm that follows."""
        if is_narrow(layer, x):
            return convolve_and_measure(x, self.kernel[layer], residual, norm)
        return measure(self.convolve(layer, x), residual, norm)

    def activate(self, norm: nn.BatchNorm2d, x: Tensor, moments: Moments) -> Tensor:
        """Return x normalised and activated."""
        y = normalize(x, moments, SLOPE)
        if self.learned:
            self.normalized[norm] = Normalized(x[: self.learned], y[: self.learned], moments)
        return y

    def convolve_backward(self, layer: nn.Conv2d, x: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient of the layer's input, empty for images; store the gradient of its kernel."""
        to_input = x is not self.images
        if is_narrow(layer, x):
            self.gradient[layer.weight] = kernel_gradient(x, gradient)
            return convolve_back(gradient, self.kernel[layer]) if to_input else torch.empty(0)
        geometry = layer.stride, layer.padding, layer.dilation, False, [0, 0], 1
        found, self.gradient[layer.weight], _ = torch.ops.aten.convolution_backward(
            gradient, x, self.kernel[layer], None, *geometry, [to_input, True, False]
        )
        return found

    def activate_backward(self, norm: nn.BatchNorm2d, gradient: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """Return the gradient of the norm's input + that of the shortcut; store those of weight and bias."""
        x, _, moments = self.normalized[norm]
        gradient, self.gradient[norm.weight], self.gradient[norm.bias] = normalize_backward(
            gradient, x, moments, norm, SLOPE, shortcut
        )
        return gradient

    def gradients(self) -> list[Tensor]:
        """Return the gradients in the order of the network's parameters, each in the layout of its parameter.

        The tape drops its references: autograd would copy a gradient that somebody else still holds.
        """
        return cast([self.gradient.pop(parameter) for parameter in self.network.parameters()], torch.float32)


def cast(values: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return values in another type. One kernel casts all values that are not of this type."""
    cast_values = [value if value.dtype == dtype else torch.empty_like(value, dtype=dtype) for value in values]
    pairs = [(new, old) for new, old in zip(cast_values, values, strict=True) if new is not old]
    if pairs:
        torch._foreach_copy_([new for new, _ in pairs], [old for _, old in pairs])
    return cast_values


def run_forward(network: WideResNet, images: Tensor, tape: Tape) -> Tensor:
    """Return features. Each convolution measures the moments for the next norm, also if that is in the next block."""
    tape.images = images[: tape.learned]
    blocks = network.each_block()
    x, moments = tape.convolve_into(blocks[0].norm1, network.stem, images)
    for block, following in zip(blocks, [*(block.norm1 for block in blocks[1:]), network.norm], strict=True):
        activated = tape.activate(block.norm1, x, moments)
        x = activated if block.activate_shortcut else x
        residual = x if block.shortcut is None else tape.convolve(block.shortcut, x)
        inner, moments = tape.convolve_into(block.norm2, block.conv1, activated)
        inner = tape.activate(block.norm2, inner, moments)
        x, moments = tape.convolve_into(following, block.conv2, inner, residual)
    return tape.activate(network.norm, x, moments).mean((2, 3))


def run_backward(network: WideResNet, gradient: Tensor, tape: Tape) -> None:
    """Store the gradients of all parameters on the tape, given that of the features, (B, D)."""
    last = tape.normalized[network.norm].y
    pixels = last.shape[2] * last.shape[3]
    gradient = torch.empty_like(last).copy_(gradient[: tape.learned, :, None, None] / pixels)
    gradient = tape.activate_backward(network.norm, gradient)
    for block in reversed(network.each_block()):
        gradient = block_backward(block, gradient, tape)
    tape.convolve_backward(network.stem, tape.images, gradient)


def block_backward(block: Block, gradient: Tensor, tape: Tape) -> Tensor:
    """Return the gradient of a block's input, given that of its output."""
    x, activated, _ = tape.normalized[block.norm1]
    inner = tape.convolve_backward(block.conv2, tape.normalized[block.norm2].y, gradient)
    inner = tape.activate_backward(block.norm2, inner)
    through = tape.convolve_backward(block.conv1, activated, inner)
    if block.shortcut is not None:
        gradient = tape.convolve_backward(block.shortcut, activated if block.activate_shortcut else x, gradient)
    if block.activate_shortcut:
        return tape.activate_backward(block.norm1, through + gradient)
    return tape.activate_backward(block.norm1, through, shortcut=gradient)
