"""Heads: modules that methods add to a network, after its feature."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PrototypeAttention(nn.Module):
    """Refines features by multi-head attention over prototypes. Each head has its own embedding e.

    w = softmax(e(f)·e(p)ᵀ/√E),   g = ReLU(f + W_o · concat ReLU(W[w·e(p), e(f)]))

    Shapes: B features, P prototypes, D their width, H heads, E = D/H width of a head. The softmax goes over the filled
    prototypes. If none is filled, the result is finite but has no meaning.
    """

    def __init__(self, features: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.width = max(1, features // heads)
        self.embed = nn.Linear(features, heads * self.width)
        self.merge = nn.ModuleList(nn.Linear(2 * self.width, self.width) for _ in range(heads))
        self.out = nn.Linear(heads * self.width, features)

    def forward(
        self, feature_BD: Tensor, prototype_PD: Tensor, filled_P: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return refined features, (B, D). With a generator, on their device, dropout acts on the attention weights."""
        query_HBE, key_HPE = self.embedded(feature_BD), self.embedded(prototype_PD)
        score_HBP = query_HBE @ key_HPE.mT / math.sqrt(self.width)
        # Not minus infinity: without a filled prototype, the softmax and its gradient would be 0/0.
        weight_HBP = score_HBP.masked_fill(~filled_P, torch.finfo(score_HBP.dtype).min).softmax(-1)
        if generator is not None:
            drawn_HBP = torch.rand(weight_HBP.shape, generator=generator, device=generator.device)
            weight_HBP = weight_HBP * (drawn_HBP >= self.dropout) / (1 - self.dropout)
        pair_HBF = torch.cat([weight_HBP @ key_HPE, query_HBE], dim=-1)
        merged = [F.relu(merge(pair_BF)) for merge, pair_BF in zip(self.merge, pair_HBF, strict=True)]
        return F.relu(feature_BD + self.out(torch.cat(merged, dim=-1)))

    def embedded(self, feature_BD: Tensor) -> Tensor:
        """Return the embedding by each head, (H, B, E)."""
        return self.embed(feature_BD).unflatten(-1, (self.heads, self.width)).transpose(0, 1)


class Embedding(nn.Module):
    """Two linear layers with a leaky ReLU between them, from features to unit vectors that are compared.

    slope: of the leaky ReLU below 0; with a slope of 0 it is a ReLU. hidden: outputs of the first layer, as many as
    there are features by default.
    """

    def __init__(self, features: int, width: int, slope: float, hidden: int | None = None) -> None:
        super().__init__()
        hidden = hidden or features
        self.layers = nn.Sequential(nn.Linear(features, hidden), nn.LeakyReLU(slope), nn.Linear(hidden, width))

    def forward(self, feature_BD: Tensor) -> Tensor:
        """(B, D) → (B, width), rows of unit length."""
        return F.normalize(self.layers(feature_BD), dim=-1)


class Projection(nn.Module):
    """Maps features to embeddings: three linear layers with BatchNorm and a leaky ReLU between them.

    hidden: outputs of the first two layers, as many as there are features by default. slope: of the leaky ReLU below 0;
    with a slope of 0 it is a ReLU.
    """

    def __init__(self, features: int, width: int, hidden: int | None = None, slope: float = 0.0) -> None:
        super().__init__()
        hidden = hidden or features
        self.layers = nn.Sequential(
            nn.Linear(features, hidden, bias=False),  # BatchNorm would remove a bias
            nn.BatchNorm1d(hidden),
            nn.LeakyReLU(slope),
            nn.Linear(hidden, hidden, bias=False),
            nn.BatchNorm1d(hidden),
            nn.LeakyReLU(slope),
            nn.Linear(hidden, width),
        )

    def forward(self, feature_BD: Tensor) -> Tensor:
        """Return embeddings (B, width) of features (B, D). In training, a single row counts like two equal ones."""
        if self.training and len(feature_BD) == 1:  # BatchNorm refuses it
            return self.layers(feature_BD.expand(2, -1))[:1]
        return self.layers(feature_BD)


class HeadBeside(nn.Module):
    """Two heads of one network. A call uses the first one; the other one is `second`."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, feature_BD: Tensor) -> Tensor:
        """Return the output of the first head."""
        return self.first(feature_BD)
