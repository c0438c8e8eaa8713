"""Optimizer, learning-rate schedule and weight average, each in a few fused operations.

Learning rate and decay are computed from the step counter on the device, so a replayed CUDA graph advances them.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from aggmatch.settings import OptimSettings


def learning_rate(settings: OptimSettings, progress: Tensor) -> Tensor:
    """Learning rate at progress k/K; both 0-d.

    η·cos(7π/16 · k/K),   or with `final` f:   η·(f + (1 − f)·(1 + cos(π·k/K))/2)

    With a warm-up, k/K in these formulas is the progress after it. During the warm-up the rate grows linearly to η.
    """
    warm = settings.warmup
    after = ((progress - warm) / (1 - warm)).clamp(min=0) if warm else progress
    if settings.final is None:
        rate = settings.lr * torch.cos(7 * math.pi / 16 * after)
    else:
        rate = settings.lr * (settings.final + (1 - settings.final) * (1 + torch.cos(math.pi * after)) / 2)
    if not warm:
        return rate
    return rate * (settings.warmup_from + (1 - settings.warmup_from) * (progress / warm).clamp(max=1))


class SGD:
    """Stochastic gradient descent with momentum and weight decay on kernels.

    g ← ∇ + wd·w,   v ← m·v + g,   w ← w − η(g + m·v), or without `nesterov` w ← w − η·v

    With `lars`, g of a kernel is first multiplied by its trust ratio t·|w| / (|∇| + wd·|w|).

    slow: start of the names of parameters whose learning rate is η times `backbone_rate`; empty for none.
    """

    def __init__(self, module: nn.Module, settings: OptimSettings, slow: str = "") -> None:
        self.settings, self.slow = settings, slow
        self.parameters = dict(module.named_parameters())
        self.velocity = {name: torch.zeros_like(parameter) for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def step(self, rate: Tensor) -> None:
        """Apply the gradients, then free them. Parameters without a gradient, which the method does not use, stay."""
        used = {name: parameter for name, parameter in self.parameters.items() if parameter.grad is not None}
        kernels = {name: parameter for name, parameter in used.items() if parameter.ndim > 1}
        others = {name: parameter for name, parameter in used.items() if parameter.ndim <= 1}
        weight_decay = self.settings.weight_decay
        if self.settings.optimizer == "lars":
            scale_to_norms(list(kernels.values()), self.settings)
            weight_decay = 0.0  # the gradients contain it now
        for some, decay in ((kernels, weight_decay), (others, 0.0)):
            slow = {name: parameter for name, parameter in some.items() if self.slow and name.startswith(self.slow)}
            self.descend({name: parameter for name, parameter in some.items() if name not in slow}, rate, decay)
            self.descend(slow, rate * self.settings.backbone_rate, decay)
        for parameter in used.values():
            parameter.grad = None  # the next backward then writes instead of adding

    def descend(self, parameters: Mapping[str, Tensor], rate: Tensor, weight_decay: float) -> None:
        """Move parameters and velocities by one step, in one fused operation."""
        if parameters:
            torch._fused_sgd_(
                list(parameters.values()),
                gradients_of(list(parameters.values())),
                [self.velocity[name] for name in parameters] if self.settings.momentum else [],
                lr=rate,
                momentum=self.settings.momentum,
                weight_decay=weight_decay,
                dampening=0.0,
                nesterov=self.settings.nesterov and self.settings.momentum > 0,
                maximize=False,
                is_first_step=False,
            )

    def state_dict(self) -> dict[str, Tensor]:
        """Velocities by the names of their parameters."""
        return dict(self.velocity)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue with the velocities of a checkpoint."""
        for name, velocity in self.velocity.items():
            velocity.copy_(state[name])


def gradients_of(parameters: list[Tensor]) -> list[Tensor]:
    """Gradients of parameters; each must have one."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def scale_to_norms(kernels: list[Tensor], settings: OptimSettings) -> None:
    """Add weight decay to the gradients of kernels and multiply them by their trust ratios."""
    ratios = trust_ratios(kernels, settings)
    torch._foreach_add_(gradients_of(kernels), kernels, alpha=settings.weight_decay)
    torch._foreach_mul_(gradients_of(kernels), ratios)


def trust_ratios(kernels: list[Tensor], settings: OptimSettings) -> list[Tensor]:
    """t·|w| / (|∇| + wd·|w|) of each kernel, 0-d; 1 if its weights or its gradient are all 0."""
    weight_K = torch.stack(torch._foreach_norm(kernels))
    gradient_K = torch.stack(torch._foreach_norm(gradients_of(kernels)))
    ratio_K = settings.trust * weight_K / (gradient_K + settings.weight_decay * weight_K)
    return list(ratio_K.where((weight_K > 0) & (gradient_K > 0), 1).unbind())


def average_decay(settings: OptimSettings, step: Tensor) -> Tensor:
    """Decay λ_m of the weight average at step k; both 0-d."""
    decay = torch.full_like(step, settings.average, dtype=torch.float32)
    return torch.minimum(decay, (1 + step) / (10 + step)) if settings.average_warmup else decay


@torch.no_grad()
def update_average(average: nn.Module, online: nn.Module, decay: Tensor, *, copy_statistics: bool) -> None:
    """Move the average towards the online network: θ_m ← λ_m θ_m + (1 − λ_m) θ  (Eq. 4).

    copy_statistics: whether to copy the buffers (BatchNorm's running statistics) of the online network.
    """
    averaged: list[Tensor] = list(average.parameters())
    current: list[Tensor] = list(online.parameters())
    difference = torch._foreach_sub(current, averaged)
    torch._foreach_mul_(difference, 1 - decay)
    torch._foreach_add_(averaged, difference)
    if copy_statistics:
        copy_buffers(average, online)


def copy_buffers(target: nn.Module, source: nn.Module) -> None:
    """Copy all buffers from one network to its copy, with one operation per data type."""
    pairs = list(zip(target.buffers(), source.buffers(), strict=True))
    for dtype in {buffer.dtype for buffer, _ in pairs}:
        of_type = [pair for pair in pairs if pair[0].dtype == dtype]
        torch._foreach_copy_([to for to, _ in of_type], [from_ for _, from_ in of_type])
