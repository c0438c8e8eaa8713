"""Layers for a batch of which the last images take part without learning: their activations are constants."""

import torch
from torch import Tensor, nn


def convolve(layer: nn.Conv2d, x: Tensor, constant: int) -> Tensor:
    """The layer's output; no backward pass is spent on the last `constant` images."""
    if not constant:
        return layer(x)
    with torch.no_grad():
        still = layer(x[-constant:])
    return torch.cat([layer(x[:-constant]), still])


def hold(x: Tensor, constant: int) -> Tensor:
    """The same activations, through which the last `constant` images pass no gradient on."""
    return torch.cat([x[:-constant], x[-constant:].detach()]) if constant else x
