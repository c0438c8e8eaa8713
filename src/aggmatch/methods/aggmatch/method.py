"""AggMatch: attention over a queue refines pseudo labels, which are weighted by the agreement of queue subsets."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from aggmatch.config import Count, Fraction, Natural, NonNegative, Positive
from aggmatch.devices import side_stream
from aggmatch.functional import Aggregate, PseudoLabels, one_hot, sharpen, soft_cross_entropy
from aggmatch.methods.aggmatch.aggregation import ClassTerm, Memory, Terms, aggregate
from aggmatch.methods.aggmatch.queue import ClassBalancedQueue, QueueExplainer
from aggmatch.methods.alignment import FadingAlignment
from aggmatch.methods.base import Batch, Problem, StepResult, forward_together
from aggmatch.methods.shrinking import Shrinking
from aggmatch.methods.start import StartingMethod, StartSettings
from aggmatch.models import Network, Output


@dataclass(frozen=True, kw_only=True)
class Config(StartSettings):
    """Section `method` of AggMatch. Its momentum network is the weight average (λ_m, section `optim`)."""

    slots: Count = 2048
    """L: slots of the queue for each class."""
    subsets: Count = 64
    """M: disjoint subsets of the queue whose consensus is the confidence."""
    disjoint: Literal["slots", "images"] = "slots"
    """What no two subsets share: slots, or also images (all views of an image in the queue then stay in one subset, so
    that subsets vote with different images)."""
    threshold: Fraction = 0.95
    """τ: an unlabelled image enters the queue if the momentum network's probability is at least this. With
    `confidence=off`, a pseudo label also needs at least this refined probability to be used. An image is sure if the
    network's own probability is at least this (`sure_only`, `shrinking_weight`)."""
    similarity_temperature: Positive = 0.05
    """τ_sim: temperature of the attention."""
    feature_term: bool = True
    """Whether the cosine of the features is part of the similarity."""
    class_term: ClassTerm = "divergence"
    """Class term of the similarity: minus the Jensen-Shannon divergence, minus its root (`distance`), or `none`."""
    class_weight: NonNegative = 0.5
    """λ_sim: weight of the class term."""
    sharpening: Positive = 0.5
    """T: temperature that sharpens a refined pseudo label."""
    unlabeled_weight: NonNegative = 1.0
    """λ: weight of the unlabelled loss."""
    refine: bool = True
    """Whether pseudo labels are the aggregated predictions; otherwise they are the network's own."""
    confidence: Literal["weighting", "product", "thresholding", "off"] = "weighting"
    """Use of the consensus: as a weight, as a weight times the refined probability (`product`), as a mask by
    `vote_entropy`, or not at all (FixMatch's mask, `threshold`)."""
    vote_entropy: NonNegative = 1.0
    """τ_u: with `confidence=thresholding`, the largest entropy of the votes with which a pseudo label is used."""
    sure_only: bool = False
    """Whether only pseudo labels of sure images count: those whose own prediction, aligned if there is an alignment,
    has at least probability `threshold`, as in FixMatch. A refined prediction is hardly ever unsure."""
    shrinking_weight: NonNegative = 0.0
    """λ_c: weight of the loss of unsure images, in which the most probable class is distinguished from those that are
    not confused with it (ShrinkMatch); 0 for none."""
    labeled_slots: Literal["prediction", "one_hot"] = "prediction"
    """Distribution of a labelled image in the queue: the momentum network's prediction, or its given label."""
    momentum_encoder: bool = True
    """Whether the momentum network fills the queue; otherwise the online network does."""
    class_balanced: bool = True
    """Whether each class has its own ring of slots; otherwise one ring holds as many slots in total."""
    alignment: bool = False
    """Whether predictions are aligned to the class shares of `alignment_target`: the network's, those that enter the
    queue, and refined ones."""
    alignment_target: Literal["uniform", "labels"] = "uniform"
    """Shares that aligned classes have: equal ones, or those of the labelled images."""
    alignment_decay: Fraction = 0.97
    """Decay of the running mean of predictions that the alignment divides by."""
    alignment_steps: Natural = 0
    """Steps with full alignment; it fades out over as many further steps. 0: it never fades out."""


class AggMatch(StartingMethod[Config]):
    """Pseudo labels refined by attention over a class-balanced queue, weighted by the consensus of its subsets."""

    config_type = Config
    reference = "Kim et al., AggMatch: Aggregating Pseudo Labels for Semi-Supervised Learning, 2022"
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
        self.shrinking = Shrinking(problem, config.threshold) if config.shrinking_weight else None
        self.align = nn.ModuleDict({name: self.build_alignment() for name in ("own", "queue", "refined")})

    @classmethod
    def needs_even_classes(cls, config: Config) -> bool:
        """Alignment to equal classes is wrong if they are not, unless it fades out."""
        return config.alignment and config.alignment_target == "uniform" and not config.alignment_steps

    def build_head(self) -> nn.Module:
        """Return the head of the first steps, with a classifier of unsure images beside it if there is one."""
        head = super().build_head()
        return self.shrinking.build_head(head) if self.shrinking else head

    def build_alignment(self) -> nn.Module:
        """Return an alignment with a running mean of its own, or a module that changes nothing."""
        config = self.config
        if not config.alignment:
            return nn.Identity()
        shares = self.problem.class_shares if config.alignment_target == "labels" else ()
        return FadingAlignment(self.problem.classes, config.alignment_decay, config.alignment_steps, shares)

    def learn(self, batch: Batch, online: Network, average: Network) -> StepResult:
        """L = mean CE(y, p(α(x))) + λ · mean c̄ · CE(q̄, p(A(u)))          (Eq. 5, 6).

        Plus λ_c times the loss of unsure images, `Shrinking.loss`. With `sure_only`, c̄ is 0 for unsure images.
        """
        labeled_view, weak_view = batch.labeled[0], batch.unlabeled[0]
        # Several processes must exchange the values of both passes in one order, so one pass follows the other then.
        parallel = average.processes is None
        with torch.no_grad(), side_stream(labeled_view.device, parallel=parallel) as momentum_pass:
            keys = forward_together(average, weak_view, labeled_view) if self.config.momentum_encoder else None
            memory = self.update_queue(batch, *keys) if keys else None
        others, strong, weak = self.joint_pass(batch, online)
        momentum_pass.join()
        with torch.no_grad():
            if memory is None:
                memory = self.update_queue(batch, weak, others[0])
            probs_BY = self.align["own"](weak.logits.softmax(-1))
            aggregated = self.attend(weak.feature, probs_BY, memory)
            target_BY = self.align["refined"](aggregated.probs) if self.config.refine else probs_BY
            weight_B = self.start.begun * self.loss_weights(aggregated, target_BY)
            if self.config.sure_only:
                weight_B = weight_B * (probs_BY.amax(-1) >= self.config.threshold)

        loss, parts = self.start.loss(others, batch, online)
        cost_B = soft_cross_entropy(sharpen(target_BY, self.config.sharpening), strong.logits)
        loss_unlabeled = (weight_B * cost_B).mean()
        loss = loss + self.config.unlabeled_weight * loss_unlabeled
        parts |= {"loss_unlabeled": loss_unlabeled, "confidence": aggregated.confidence.mean()}
        if self.shrinking:
            parts["loss_shrinking"] = self.start.begun * self.shrinking.loss(probs_BY, strong.feature, online)
            loss = loss + self.config.shrinking_weight * parts["loss_shrinking"]
        return StepResult(loss, parts, PseudoLabels(target_BY.argmax(-1), weight_B))

    def update_queue(self, batch: Batch, weak: Output, labeled: Output) -> Memory:
        """Enqueue confident unlabelled images by predicted class, then all labelled ones by label; split the queue."""
        weak_BY, labeled_BY = self.align["queue"](weak.logits.softmax(-1)), labeled.logits.softmax(-1)
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
        return self.split(batch.generator)

    def split(self, generator: torch.Generator) -> Memory:
        """Return a random split of the queue into subsets."""
        images = self.problem.images if self.config.disjoint == "images" else 0
        return self.queue.split(self.config.subsets, generator, images=images)

    @property
    def terms(self) -> Terms:
        """The settings of the similarity."""
        config = self.config
        return Terms(feature_term=config.feature_term, class_term=config.class_term, class_weight=config.class_weight)

    def attend(self, feature_BD: Tensor, probs_BY: Tensor, memory: Memory) -> Aggregate:
        """Return predictions aggregated over the subsets of the queue."""
        return aggregate(feature_BD, probs_BY, memory, temperature=self.config.similarity_temperature, **self.terms)

    def loss_weights(self, aggregated: Aggregate, target_BY: Tensor) -> Tensor:
        """Return the weight of each pseudo label in the loss, (B,)."""
        match self.config.confidence:
            case "weighting":
                return aggregated.confidence
            case "product":
                return aggregated.confidence * target_BY.amax(-1)
            case "thresholding":
                return (-aggregated.confidence.log() <= self.config.vote_entropy).float()
            case "off":
                return (target_BY.max(-1).values >= self.config.threshold).float()

    def explainer(self) -> QueueExplainer:
        """Return what explains pseudo labels by the current queue."""
        return QueueExplainer(self)

    @classmethod
    def memory_slots(cls, config: Config, classes: int) -> list[int]:
        """Return the slots of each ring: one ring per class, or one for all."""
        return [config.slots] * classes if config.class_balanced else [config.slots * classes]

    def status(self) -> dict[str, Tensor]:
        """Return the number of filled slots of each ring."""
        return {"queue_fill": self.queue.fill}
