"""A wide residual network's training pass on CUDA, forward and backward written out.

The same function as `WideResNet.forward`, in fewer passes over the activations: BatchNorm, activation and residual sum
are fused (`kernels.norm`), all images share each launch although only some of them have a backward pass, and there is
nothing to compile for a minute first.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aggmatch.kernels.norm import Moments, measure, normalize, normalize_backward
from aggmatch.models.partial import SLOPE
from aggmatch.models.wide_resnet import Block, WideResNet


def fused_features(network: WideResNet, x: Tensor, targets: int = 0) -> Tensor:
    """Features (B, D) of images (B, C, H, W), channels last; the last `targets` images get no gradient."""
    learning = torch.is_grad_enabled() and network.stem.weight.requires_grad
    learned = len(x) - targets if learning else 0
    features: Tensor = FusedPass.apply(x, learned, network, *network.parameters())  # type: ignore[no-untyped-call]
    return features


class FusedPass(torch.autograd.Function):
    """The pass as one function of the network's parameters; the images get no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, learned: int, network: WideResNet, *_: Tensor) -> Tensor:
        """Features; what the backward pass needs is kept for the first `learned` images."""
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
        ctx.tape = Tape(network, dtype, learned)
        with torch.autocast("cuda", enabled=False):
            return run_forward(network, x.to(dtype), ctx.tape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the parameters."""
        tape: Tape = ctx.tape
        run_backward(tape.network, gradients[0], tape)
        return None, None, None, *tape.gradients()


class Normalized(NamedTuple):
    """A normalisation on the tape: what went in, what came out, and the moments of the whole batch."""

    x: Tensor
    y: Tensor
    moments: Moments


class Tape:
    """Kernels in the arithmetic's type, what the forward pass leaves for the backward pass, and what that finds."""

    def __init__(self, network: WideResNet, dtype: torch.dtype, learned: int) -> None:
        self.network, self.learned = network, learned
        convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
        kernels = cast([module.weight.detach() for module in convolutions], dtype)
        self.kernel = dict(zip(convolutions, kernels, strict=True))
        self.normalized: dict[nn.Module, Normalized] = {}
        self.gradient: dict[Tensor, Tensor] = {}
        self.images = torch.empty(0)

    def convolve(self, layer: nn.Conv2d, x: Tensor) -> Tensor:
        """The layer's output."""
        return F.conv2d(x, self.kernel[layer], None, layer.stride, layer.padding)

    def activate(self, norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The sum x + residual, and what is left of it after normalising and activating."""
        x, moments = measure(x, residual, norm)
        y = normalize(x, moments, SLOPE)
        if self.learned:
            self.normalized[norm] = Normalized(x[: self.learned], y[: self.learned], moments)
        return x, y

    def convolve_backward(self, layer: nn.Conv2d, x: Tensor, gradient: Tensor, *, to_input: bool = True) -> Tensor:
        """Gradient of the layer's input; notes that of its kernel."""
        found, self.gradient[layer.weight], _ = torch.ops.aten.convolution_backward(
            gradient,
            x,
            self.kernel[layer],
            None,
            layer.stride,
            layer.padding,
            layer.dilation,
            False,
            [0, 0],
            1,
            [to_input, True, False],
        )
        return found

    def activate_backward(self, norm: nn.BatchNorm2d, gradient: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """Gradient of the norm's input plus that of the shortcut beside it; notes those of weight and bias."""
        x, _, moments = self.normalized[norm]
        gradient, self.gradient[norm.weight], self.gradient[norm.bias] = normalize_backward(
            gradient, x, moments, norm, SLOPE, shortcut
        )
        return gradient

    def gradients(self) -> list[Tensor]:
        """Gradients in the order of the network's parameters, each like its parameter."""
        return cast([self.gradient[parameter] for parameter in self.network.parameters()], torch.float32)


def cast(values: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Values in another type; all that need it are cast by one kernel."""
    cast_values = [value if value.dtype == dtype else torch.empty_like(value, dtype=dtype) for value in values]
    pairs = [(new, old) for new, old in zip(cast_values, values, strict=True) if new is not old]
    if pairs:
        torch._foreach_copy_([new for new, _ in pairs], [old for _, old in pairs])
    return cast_values


def run_forward(network: WideResNet, images: Tensor, tape: Tape) -> Tensor:
    """Features of the images. A block's sum is taken by the norm that follows, which has to read it anyway."""
    tape.images = images[: tape.learned]
    x, residual = tape.convolve(network.stem, images), None
    for block in network.each_block():
        x, activated = tape.activate(block.norm1, x, residual)
        shortcut = activated if block.activate_shortcut else x
        _, inner = tape.activate(block.norm2, tape.convolve(block.conv1, activated))
        residual = tape.convolve(block.conv2, inner)
        x = shortcut if block.shortcut is None else tape.convolve(block.shortcut, shortcut)
    _, y = tape.activate(network.norm, x, residual)
    return y.mean((2, 3))


def run_backward(network: WideResNet, gradient: Tensor, tape: Tape) -> None:
    """Note the gradients of all parameters, given that of the features, (B, D)."""
    last = tape.normalized[network.norm].y
    pixels = last.shape[2] * last.shape[3]
    gradient = torch.empty_like(last).copy_(gradient[: tape.learned, :, None, None] / pixels)
    gradient = tape.activate_backward(network.norm, gradient)
    for block in reversed(network.each_block()):
        gradient = block_backward(block, gradient, tape)
    tape.convolve_backward(network.stem, tape.images, gradient, to_input=False)


def block_backward(block: Block, gradient: Tensor, tape: Tape) -> Tensor:
    """Gradient of a block's input, given that of its output."""
    x, activated, _ = tape.normalized[block.norm1]
    inner = tape.convolve_backward(block.conv2, tape.normalized[block.norm2].y, gradient)
    inner = tape.activate_backward(block.norm2, inner)
    through = tape.convolve_backward(block.conv1, activated, inner)
    if block.shortcut is not None:
        gradient = tape.convolve_backward(block.shortcut, activated if block.activate_shortcut else x, gradient)
    if block.activate_shortcut:
        return tape.activate_backward(block.norm1, through + gradient)
    return tape.activate_backward(block.norm1, through, shortcut=gradient)
