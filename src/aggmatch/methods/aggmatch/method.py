"""AggMatch: pseudo labels are refined by attention over a queue, and trusted as far as subsets of the queue agree."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from aggmatch.config import Count, Fraction, NonNegative, Positive, Settings
from aggmatch.functional import Aggregate, PseudoLabels, one_hot, sharpen, soft_cross_entropy
from aggmatch.methods.aggmatch.aggregation import ClassTerm, Memory, aggregate
from aggmatch.methods.aggmatch.explain import QueueExplainer
from aggmatch.methods.aggmatch.queue import ClassBalancedQueue
from aggmatch.methods.base import Batch, Method, Problem, StepResult, Views, forward_together
from aggmatch.models import Network, Output
from aggmatch.side_stream import beside


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Section `method` of AggMatch. The weight average (λ_m, section `optim`) is the momentum network."""

    slots: Count = 2048
    """L: slots of the queue for each class."""
    subsets: Count = 64
    """M: disjoint subsets of the queue whose consensus is the confidence."""
    disjoint: Literal["slots", "images"] = "slots"
    """What no two subsets share: slots, or also images (an image of which the queue holds several views then stays in
    one subset, so that the votes are of different images)."""
    threshold: Fraction = 0.95
    """τ: least momentum prediction with which an unlabelled image enters the queue; with `confidence=off` also the
    least refined probability with which a pseudo label is used."""
    similarity_temperature: Positive = 0.05
    """τ_sim: temperature of the attention."""
    feature_term: bool = True
    """Whether the cosine of the features is part of the similarity."""
    class_term: ClassTerm = "divergence"
    """Class part of the similarity: minus the Jensen-Shannon divergence, minus its root (`distance`), or `none`."""
    class_weight: NonNegative = 0.5
    """λ_sim: weight of the class part."""
    sharpening: Positive = 0.5
    """T: temperature that sharpens a refined pseudo label."""
    unlabeled_weight: NonNegative = 1.0
    """λ: weight of the unlabelled loss."""
    refine: bool = True
    """Whether pseudo labels are the aggregated ones; otherwise the network's own."""
    confidence: Literal["weighting", "thresholding", "off"] = "weighting"
    """Use of the consensus: as a weight, as a mask by `vote_entropy`, or not at all (FixMatch's mask, `threshold`)."""
    vote_entropy: NonNegative = 1.0
    """τ_u: with `confidence=thresholding`, the largest entropy of the votes with which a pseudo label is used."""
    labeled_slots: Literal["prediction", "one_hot"] = "prediction"
    """Distribution that a labelled image leaves in the queue: the momentum prediction or its given label."""
    momentum_encoder: bool = True
    """Whether the queue is filled by the momentum network; otherwise by the online one."""
    class_balanced: bool = True
    """Whether every class has a ring of its own; otherwise one ring of as many slots in all."""


class AggMatch(Method[Config]):
    """Pseudo labels refined by attention over a class-balanced queue, weighed by the consensus of its subsets."""

    config_type = Config
    reference = "Kim et al., AggMatch: Aggregating Pseudo Labels for Semi-Supervised Learning, 2022"
    views = Views(labeled=("weak",), unlabeled=("weak", "strong"))
    explains = True

    def __init__(self, config: Config, problem: Problem) -> None:
        super().__init__(config, problem)
        self.average_statistics = "own" if config.momentum_encoder else "copied"
        rings = problem.classes if config.class_balanced else 1
        self.queue = ClassBalancedQueue(
            rings=rings,
            slots=config.slots * problem.classes // rings,
            features=problem.features,
            classes=problem.classes,
            dtype=torch.bfloat16 if problem.mixed else torch.float32,
        )

    def step(self, batch: Batch, online: Network, average: Network) -> StepResult:
        """L = mean CE(y, p(α(x))) + λ · mean c̄ · CE(q̄, p(A(u)))          (Eq. 5, 6)."""
        (labeled_view,), (weak_view, strong_view) = batch.labeled, batch.unlabeled
        with torch.no_grad(), beside(labeled_view.device) as momentum_pass:
            keys = forward_together(average, weak_view, labeled_view) if self.config.momentum_encoder else None
            memory = self.renew(batch, *keys) if keys else None
        labeled, strong, weak = forward_together(online, labeled_view, strong_view, targets=weak_view)
        momentum_pass.join()
        with torch.no_grad():
            if memory is None:
                memory = self.renew(batch, weak, labeled)
            probs_BY = weak.logits.softmax(-1)
            aggregated = self.attend(weak.feature, probs_BY, memory)
            target_BY = aggregated.probs if self.config.refine else probs_BY
            weight_B = self.weigh(aggregated, target_BY)

        loss_labeled = F.cross_entropy(labeled.logits, batch.labels)
        cost_B = soft_cross_entropy(sharpen(target_BY, self.config.sharpening), strong.logits)
        loss_unlabeled = (weight_B * cost_B).mean()
        loss = loss_labeled + self.config.unlabeled_weight * loss_unlabeled
        parts = {
            "loss_labeled": loss_labeled.detach(),
            "loss_unlabeled": loss_unlabeled.detach(),
            "confidence": aggregated.confidence.mean(),
        }
        return StepResult(loss, parts, PseudoLabels(target_BY.argmax(-1), weight_B))

    def renew(self, batch: Batch, weak: Output, labeled: Output) -> Memory:
        """Bring the queue up to date and deal it."""
        self.remember(batch, weak, labeled)
        return self.deal(batch.generator)

    def remember(self, batch: Batch, weak: Output, labeled: Output) -> None:
        """Enqueue confident unlabelled images under their predicted class, then all labelled ones under their own."""
        weak_BY, labeled_BY = weak.logits.softmax(-1), labeled.logits.softmax(-1)
        confidence_B, predicted_B = weak_BY.max(-1)
        if self.config.labeled_slots == "one_hot":
            labeled_BY = one_hot(batch.labels, self.problem.classes).float()
        class_B = torch.cat([predicted_B, batch.labels])
        confident_B = confidence_B >= self.config.threshold
        always = torch.ones_like(batch.labels, dtype=torch.bool)
        self.queue.enqueue(
            torch.cat([weak.feature, labeled.feature]),
            torch.cat([weak_BY, labeled_BY]),
            ring_B=class_B if self.config.class_balanced else torch.zeros_like(class_B),
            accept_B=torch.cat([confident_B, always]),
            source_B=torch.cat([batch.unlabeled_index, batch.labeled_index]),
            given_B=torch.cat([torch.zeros_like(confident_B), always]),
        )

    def attend(self, feature_BD: Tensor, probs_BY: Tensor, memory: Memory) -> Aggregate:
        """Aggregate over the subsets of a queue that was dealt."""
        return aggregate(
            feature_BD,
            probs_BY,
            memory,
            temperature=self.config.similarity_temperature,
            feature_term=self.config.feature_term,
            class_term=self.config.class_term,
            class_weight=self.config.class_weight,
        )

    def deal(self, generator: torch.Generator) -> Memory:
        """A random split of the queue into subsets."""
        images = self.problem.images if self.config.disjoint == "images" else 0
        return self.queue.split(self.config.subsets, generator, images=images)

    def weigh(self, aggregated: Aggregate, target_BY: Tensor) -> Tensor:
        """Weight of each pseudo label in the loss, (B,)."""
        match self.config.confidence:
            case "weighting":
                return aggregated.confidence
            case "thresholding":
                return (-aggregated.confidence.log() <= self.config.vote_entropy).float()
            case "off":
                return (target_BY.max(-1).values >= self.config.threshold).float()

    def explainer(self) -> QueueExplainer:
        """The queue as it explains pseudo labels."""
        return QueueExplainer(self)

    @classmethod
    def memory_slots(cls, config: Config, classes: int) -> list[int]:
        """L slots for each class, or one ring for all."""
        return [config.slots] * classes if config.class_balanced else [config.slots * classes]

    def status(self) -> dict[str, Tensor]:
        """Filled slots of every ring."""
        return {"queue_fill": self.queue.fill}
