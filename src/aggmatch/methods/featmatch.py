"""FeatMatch: attention over class prototypes refines features, and raw features learn the refined predictions.

Shape suffixes: B samples, N recorded features, D their width, Y classes, K groups of a class, P = Y·K prototypes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aggmatch.config import Count, Fraction, Natural, NonNegative, Positive, Range, Settings
from aggmatch.functional import PseudoLabels, beta_shares, linear_ramp, mixup, one_hot, sharpen, soft_cross_entropy
from aggmatch.methods.base import (
    Batch,
    Method,
    Problem,
    StepResult,
    TrainingImages,
    TrainingSet,
    Views,
    forward_together,
)
from aggmatch.models import Network, images_at_once
from aggmatch.models.heads import PrototypeAttention


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Section `method` of FeatMatch."""

    strong_views: Count = 8
    """Strong views of each image, labelled or not, in addition to its weak view."""
    heads: Count = 4
    """Number of attention heads."""
    dropout: Annotated[float, Range(0, 0.9)] = 0.1
    """Share of the attention weights that dropout sets to 0 in training."""
    labeled_prototypes: Count = 10
    """Prototypes of a class from labelled images: one is their mean feature, the others are cluster means, or single
    images if there are few."""
    unlabeled_prototypes: Count = 10
    """The same from unlabelled images that are predicted to be of the class. A class has as many of both in all: with
    few labelled images more of them are from unlabelled ones, and without confident predictions none."""
    warmup: Natural = 3000
    """Steps without prototypes."""
    refresh_every: Count = 500
    """Steps between two clusterings. The first one is at the first multiple of this that is at least `warmup`."""
    recorded: Count = 16384
    """Largest number of features of unlabelled images to record for the next clustering."""
    iterations: Count = 20
    """Number of k-means iterations."""
    threshold: Fraction = 0.5
    """A recorded feature is used if its predicted probability exceeds this; halved while a class has too few."""
    halvings: Natural = 4
    """How often `threshold` is halved before unlabelled images are left out."""
    sharpening: Positive = 0.75
    """T: temperature that sharpens a pseudo label."""
    alpha: Positive = 0.75
    """α: parameter of the Beta distribution of the mixing share of a batch. A small α mixes little."""
    refined_weight: NonNegative = 0.5
    """λ_g: weight of the unlabelled loss of refined features after the ramp."""
    raw_weight: NonNegative = 2.0
    """λ_f: weight of the unlabelled loss of raw features after the ramp; 0 while there are no prototypes."""
    ramp: Fraction = 0.4
    """Share of the steps over which the weight of the unlabelled losses grows linearly from 0."""


class FeatMatch(Method[Config]):
    """Predictions from features refined by attention over class prototypes are the targets of mixed views."""

    config_type = Config
    reference = "Kuo et al., FeatMatch: Feature-Based Augmentation for Semi-Supervised Learning, 2020"
    defaults = {"train.unlabeled_ratio": 2}
    predictor = ("prototype", "filled")

    prototype: Tensor  # (P, D), class by class
    filled: Tensor  # (P,) whether there is a prototype; all False before the first clustering

    def __init__(self, config: Config, problem: Problem) -> None:
        super().__init__(config, problem)
        names = ("weak", *["strong"] * config.strong_views)
        self.views = Views(labeled=names, unlabeled=names)
        self.unlabeled = Records(config.recorded, problem.features)
        self.per_class = config.labeled_prototypes + config.unlabeled_prototypes
        self.register_buffer("prototype", torch.zeros(problem.classes * self.per_class, problem.features))
        self.register_buffer("filled", torch.zeros(problem.classes * self.per_class, dtype=torch.bool))

    def build_head(self) -> PrototypeAttention:
        """Return the attention over prototypes."""
        return PrototypeAttention(self.problem.features, self.config.heads, self.config.dropout)

    def step(self, batch: Batch, online: Network, average: Network) -> StepResult:
        """L = mean CE(y′, p_g(x′)) + ramp · (λ_g · mean CE(q′, p_g(u′)) + λ_f · mean CE(q′, p_f(u′))).

        q = sharpen(p_g(α(u)));   p_f and p_g: the same classifier on the feature f and on the refined feature g
        (x′, y′) and (u′, q′) are parts of λ·w + (1 − λ)·permuted w,   w = all views of x with y and of u with q,
        λ = max(b, 1 − b),   b ~ Beta(α, α), one b per batch.   Before the first clustering g = f and λ_f = 0.
        """
        with torch.no_grad():
            probs_BY = self.guess(batch, online)
            images, target_BY = self.mix(batch, probs_BY)
        mixed = online(images)
        refined_BY = online.classifier(self.refine(online, mixed.feature, batch.generator))

        count = len(batch.labels) * len(batch.labeled)
        loss_labeled = soft_cross_entropy(target_BY[:count], refined_BY[:count]).mean()
        loss_refined = soft_cross_entropy(target_BY[count:], refined_BY[count:]).mean()
        loss_raw = soft_cross_entropy(target_BY[count:], mixed.logits[count:]).mean()
        loss_unlabeled = self.config.refined_weight * loss_refined + self.config.raw_weight * self.ready * loss_raw
        loss = loss_labeled + linear_ramp(batch.progress, self.config.ramp) * loss_unlabeled
        confidence_B, class_B = probs_BY.max(-1)
        parts = {
            "loss_labeled": loss_labeled,
            "loss_unlabeled": loss_unlabeled,
            "loss_refined": loss_refined,
            "loss_raw": loss_raw,
            "confidence": confidence_B.mean(),
        }
        return StepResult(loss, parts, PseudoLabels(class_B, torch.ones_like(confidence_B)))

    @property
    def ready(self) -> Tensor:
        """Whether there are prototypes, 0-d bool."""
        return self.filled.any()

    def refine(self, network: Network, feature_BD: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return the features after attention, (B, D); before the first clustering, the features themselves."""
        # No `if`: the step is captured once, before the first clustering, and replayed after it.
        return torch.where(self.ready, network.head(feature_BD, self.prototype, self.filled, generator), feature_BD)

    def guess(self, batch: Batch, online: Network) -> Tensor:
        """Return predictions on the weak views of unlabelled images, (µB, Y), and record their features."""
        _, unlabeled = forward_together(online, batch.labeled[0], batch.unlabeled[0])
        probs_BY = online.classifier(self.refine(online, unlabeled.feature, batch.generator)).softmax(-1)
        confidence_B, class_B = probs_BY.max(-1)
        self.unlabeled.write(unlabeled.feature, class_B, confidence_B)
        return probs_BY

    def mix(self, batch: Batch, probs_BY: Tensor) -> tuple[Tensor, Tensor]:
        """Return all views, labelled ones first, and their targets, each mixed with another view, labelled or not."""
        images = torch.cat([*batch.labeled, *batch.unlabeled]).float()
        given_BY = one_hot(batch.labels, self.problem.classes).float()
        guessed_BY = sharpen(probs_BY, self.config.sharpening)
        target_BY = torch.cat([given_BY.repeat(len(batch.labeled), 1), guessed_BY.repeat(len(batch.unlabeled), 1)])
        partner_B, share_B = self.draw(len(images), batch.generator)
        return mixup(images, partner_B, share_B), mixup(target_BY, partner_B, share_B)

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return a permutation, and one λ repeated for all, both (count,)."""
        partner_B = torch.rand(count, generator=generator, device=generator.device).argsort()
        return partner_B, beta_shares(1, self.config.alpha, generator).expand(count)

    def begin(self, online: Network, average: Network, training: TrainingSet) -> None:
        """Keep a way to compute the features of the labelled images."""
        self.labels = training.labels
        self.labeled_features = partial(plain_features, online, training.pixels, training.labeled)

    @torch.no_grad()
    def refresh(self, step: int) -> None:
        """Every `refresh_every` steps, compute new prototypes, except in the warm-up, and clear the records."""
        if step % self.config.refresh_every:
            return
        if step >= self.config.warmup:
            self.cluster(self.labeled_features(), torch.Generator(self.prototype.device).manual_seed(step))
        self.unlabeled.clear()

    def cluster(self, feature_ND: Tensor, generator: torch.Generator) -> None:
        """Compute new prototypes from the features of the labelled images and the recorded ones, in place.

        It may read values on the host: it runs between steps, outside the captured graph.
        """
        settings, classes = self.config, self.problem.classes
        labeled_YN = one_hot(self.labels, classes).T
        unlabeled_YN = one_hot(self.unlabeled.label, classes).T
        unlabeled_YN = unlabeled_YN & self.confident(unlabeled_YN, self.unlabeled.confidence)
        most = settings.labeled_prototypes if unlabeled_YN.any() else self.per_class
        labeled_YKD, of_labeled_YK = group_means(feature_ND, labeled_YN, most, settings.iterations, generator)
        prototype_YPD, filled_YP = self.prototype.unflatten(0, (classes, -1)), self.filled.unflatten(0, (classes, -1))
        filled_YP.fill_(False)
        used_Y = of_labeled_YK.sum(1)
        for used in used_Y.unique().tolist():  # one value if all classes have equally many labels
            rows = used_Y == used
            prototype_YPD[rows, :used] = labeled_YKD[rows][of_labeled_YK[rows]].view(-1, used, feature_ND.shape[1])
            filled_YP[rows, :used] = True
            if used < self.per_class:
                found = group_means(
                    self.unlabeled.feature, unlabeled_YN[rows], self.per_class - used, settings.iterations, generator
                )
                prototype_YPD[rows, used:], filled_YP[rows, used:] = found

    def confident(self, member_YN: Tensor, confidence_N: Tensor) -> Tensor:
        """Return which features exceed the threshold, (N,) bool.

        The threshold is the first in τ, τ/2, τ/4, ... that gives each class more features than prototypes. If none
        does, no feature is used.
        """
        halving_T = torch.arange(self.config.halvings + 1, device=confidence_N.device)
        above_TN = confidence_N > (self.config.threshold * 0.5**halving_T)[:, None]
        enough_T = ((above_TN[:, None] & member_YN).sum(-1) > self.per_class).all(-1)
        first_T = enough_T & (enough_T.cumsum(0) == 1)
        return (first_T[:, None] & above_TN).any(0)

    def predict(self, network: Network, images: Tensor) -> Tensor:
        """Return class probabilities from the refined features, (B, Y)."""
        return network.classifier(self.refine(network, network(images).feature)).softmax(-1)

    def status(self) -> dict[str, Tensor]:
        """Return the number of prototypes."""
        return {"prototypes": self.filled.sum()}

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **options: Any) -> Any:
        """Load buffers; those of labelled records, which earlier versions had, are dropped."""
        known = {name: buffer for name, buffer in state_dict.items() if not name.startswith("labeled.")}
        return super().load_state_dict(known, *args, **options)


def plain_features(network: Network, pixels: TrainingImages, index: Tensor) -> Tensor:
    """Return the features of plain images at an index (n,) by a network in evaluation mode, (n, D)."""
    training = network.training
    network.eval()
    feature_ND = torch.cat([network(pixels[some]).feature for some in index.split(images_at_once(pixels.shape[-1]))])
    network.train(training)
    return feature_ND


class Records(nn.Module):
    """A ring buffer of the newest features with their classes."""

    feature: Tensor  # (N, D)
    label: Tensor  # (N,), −1 in an empty slot
    confidence: Tensor  # (N,) probability of the label
    position: Tensor  # next slot to write, 0-d

    def __init__(self, slots: int, features: int) -> None:
        super().__init__()
        self.slots = slots
        self.register_buffer("feature", torch.zeros(slots, features))
        self.register_buffer("label", torch.full((slots,), -1))
        self.register_buffer("confidence", torch.zeros(slots))
        self.register_buffer("position", torch.zeros((), dtype=torch.long))

    def write(self, feature_BD: Tensor, label_B: Tensor, confidence_B: Tensor) -> None:
        """Write a batch over the oldest slots; of a batch larger than the ring, only the last part."""
        count = min(len(feature_BD), self.slots)
        slot_B = (self.position + torch.arange(count, device=self.position.device)) % self.slots
        self.feature[slot_B] = feature_BD[-count:]
        self.label[slot_B] = label_B[-count:]
        self.confidence[slot_B] = confidence_B[-count:]
        self.position.copy_((self.position + count) % self.slots)

    def clear(self) -> None:
        """Mark all slots as empty."""
        self.label.fill_(-1)


# Clustering, all classes at once -----------------------------------------------------------------------------------


def group_means(
    feature_ND: Tensor, member_YN: Tensor, count: int, iterations: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return the mean feature of each class and of count − 1 clusters in it, (Y, K, D), and which exist, (Y, K) bool.

    member_YN: which features belong to a class, bool. A feature may belong to none.
    """
    groups = [member_YN[:, None]]
    if count > 1:
        groups.append(cosine_clusters(feature_ND, member_YN, count - 1, iterations, generator))
    group_YKN = torch.cat(groups, dim=1)
    size_YK = group_YKN.sum(-1)
    return group_YKN.to(feature_ND.dtype) @ feature_ND / size_YK.clamp(min=1)[..., None], size_YK > 0


def cosine_clusters(
    feature_ND: Tensor, member_YN: Tensor, clusters: int, iterations: int, generator: torch.Generator
) -> Tensor:
    """Return the members of the clusters of each class, (Y, K, N) bool: k-means by cosine, from k-means++ seeds.

    The clusters of a class are disjoint and cover it. With fewer different features than clusters, some are empty.
    """
    unit_ND = F.normalize(feature_ND, dim=-1)
    centre_YKD = unit_ND.new_zeros(len(member_YN), clusters, unit_ND.shape[1])
    # Half the squared distance d² to the nearest seed. The next seed is drawn with it: the largest of d²/Exp(1).
    distance_YN = torch.ones_like(member_YN, dtype=unit_ND.dtype)
    for number in range(clusters):
        lot_YN = torch.empty_like(distance_YN).exponential_(generator=generator)
        seed_Y = (distance_YN / lot_YN).masked_fill(~member_YN, -1).argmax(-1)
        centre_YKD[:, number] = unit_ND[seed_Y]
        distance_YN = torch.minimum(distance_YN, (1 - unit_ND[seed_Y] @ unit_ND.T).clamp(min=0))
    for _ in range(iterations):
        cluster_YKN = nearest(centre_YKD, unit_ND, member_YN)
        centre_YKD = F.normalize(cluster_YKN.to(unit_ND.dtype) @ unit_ND, dim=-1)  # 0 if a cluster has no members
    return nearest(centre_YKD, unit_ND, member_YN)


def nearest(centre_YKD: Tensor, unit_ND: Tensor, member_YN: Tensor) -> Tensor:
    """Return whether a centre is the closest of its class to a member of the class, (Y, K, N)."""
    number_YN = (centre_YKD @ unit_ND.T).argmax(1)
    return one_hot(number_YN, centre_YKD.shape[1]).transpose(1, 2) & member_YN[:, None]


METHOD = FeatMatch
