"""The contrast phase: the network learns to tell which two crops are of one image (SimCLR, Chen et al., 2020).

Shape suffixes: B images, V = 2·B crops, E width of an embedding.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aggmatch.methods.base import Batch, StepResult, Views, forward_together
from aggmatch.models import Network
from aggmatch.models.heads import Embedding

HIDDEN, WIDTH = 512, 128
"""Width of the hidden layer and of the embedding."""


class Contrast:
    """Learns features without labels; the labels train the classifier alone, so that they do not bend the features.

    temperature: t, of the similarities between embeddings.
    """

    views = Views(labeled=("weak",), unlabeled=("large_crop", "large_crop"))

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature

    @staticmethod
    def build_head(features: int) -> nn.Module:
        """The embedding of a feature."""
        return Embedding(features, WIDTH, slope=0.0, hidden=HIDDEN)

    def step(self, batch: Batch, online: Network) -> StepResult:
        """L = L_c + mean CE(y, p(α(x))), the second without a gradient by the features."""
        labeled, first, second = forward_together(online, *batch.labeled, *batch.unlabeled)
        loss_labeled = F.cross_entropy(online.classifier(labeled.feature.detach()).float(), batch.labels)
        crop_VE = online.head(torch.cat([first.feature, second.feature]))
        loss_contrast = contrast_loss(crop_VE, self.temperature)
        return StepResult(loss_labeled + loss_contrast, {"loss_labeled": loss_labeled, "loss_contrast": loss_contrast})


def contrast_loss(crop_VE: Tensor, temperature: float) -> Tensor:
    """L_c = mean_v −log (exp(z_v · z_v′ / t) / Σ_{w≠v} exp(z_v · z_w / t)),   v′: the other crop of the same image.

    crop_VE: unit vectors; first one crop of every image, then the other crops in the same order.
    """
    count = len(crop_VE)
    similarity_VV = crop_VE @ crop_VE.T / temperature
    itself_VV = torch.eye(count, dtype=torch.bool, device=crop_VE.device)
    other_V = torch.arange(count, device=crop_VE.device).roll(count // 2)
    return F.cross_entropy(similarity_VV.masked_fill(itself_VV, -torch.inf), other_V)
