"""Learning from unsure images (ShrinkMatch): the most probable class against those that are not confused with it.

A network that is not sure whether an image is a cat or a dog may be sure that it is one of them. Without the dog, the
cat is certain, and the image shows how a cat differs from the other eight classes. Nothing is learned about cat or dog.

Shape suffixes: B samples, Y classes, D features.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aggmatch.methods.base import Problem
from aggmatch.models import Network
from aggmatch.models.heads import HeadBeside, Projection

MEMORY = 0.999
"""Decay of the running share of sure images."""


class Shrinking(nn.Module):
    """The loss of unsure images, with a classifier of its own, which keeps errors away from the one that predicts.

    threshold: τ, the least probability of a sure image, among all classes or among those that are kept.
    """

    sure: Tensor  # 0-d, running share of sure images
    batches: Tensor  # 0-d, number of batches seen

    def __init__(self, problem: Problem, threshold: float) -> None:
        super().__init__()
        self.problem, self.threshold = problem, threshold
        self.register_buffer("sure", torch.zeros(()))
        self.register_buffer("batches", torch.zeros(()))

    def build_head(self, first: nn.Module) -> HeadBeside:
        """Return the head of a network with the classifier of unsure images beside another head."""
        features, classes = self.problem.features, self.problem.classes
        return HeadBeside(first, Projection(features, classes, hidden=max(1, features // 4), slope=0.1))

    def loss(self, probs_BY: Tensor, feature_BD: Tensor, online: Network) -> Tensor:
        """s · mean_b 1[max q_b < τ] · max q_b · CE(argmax q_b, p′(A(u_b)) among the kept classes), 0-d.

        s: the running share of sure images, this batch included, so that the loss counts once the network is good.
        probs_BY: q, predictions on weak views. feature_BD: of strong views. p′: of the second head. An image without
        kept classes adds 0.
        """
        confidence_B, target_B = probs_BY.max(-1)
        sure_B = confidence_B >= self.threshold
        with torch.no_grad():
            keep = (self.batches / (self.batches + 1)).clamp(max=MEMORY)
            self.sure.copy_(keep * self.sure + (1 - keep) * sure_B.float().mean())
            self.batches.add_(1)
        assert isinstance(online.head, HeadBeside)
        logits_BY = online.head.second(feature_BD).float()
        among_kept_BY = logits_BY.masked_fill(~kept_classes(probs_BY, self.threshold), -torch.inf)
        cost_B = F.cross_entropy(among_kept_BY, target_B, reduction="none")
        return self.sure.clone() * (~sure_B * confidence_B * cost_B).mean()


@torch.no_grad()
def kept_classes(probs_BY: Tensor, threshold: float) -> Tensor:
    """Return which classes are kept, so that the most probable one has at least probability τ among them, (B, Y) bool.

    From the second most probable class on, classes are taken away until p_1 / (p_1 + Σ kept others) ≥ τ. If no class
    would be left beside the first one, only that one is kept; a sure image keeps all.
    """
    # Stable: the first of equally probable classes comes first, as in `max`; else the target could be left out.
    sorted_BY, order_BY = probs_BY.float().sort(dim=-1, descending=True, stable=True)
    best_B1 = sorted_BY[:, :1]
    rest_BY = sorted_BY.flip(-1).cumsum(-1).flip(-1)  # what this class and all less probable ones have
    kept_BY = best_B1 >= threshold * (best_B1 + rest_BY)  # true from some class on, for a sure image from the second
    kept_BY[:, 0] = True
    return torch.zeros_like(kept_BY).scatter(-1, order_BY, kept_BY)
