"""FixMatch: a confident prediction on a weak view is the target of a strong view of the same image."""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import nn

from aggmatch.config import Count, Fraction, NonNegative
from aggmatch.functional import PseudoLabels, soft_cross_entropy
from aggmatch.methods.alignment import Target, build_alignment
from aggmatch.methods.base import Batch, Problem, StepResult
from aggmatch.methods.shrinking import Shrinking
from aggmatch.methods.start import StartingMethod, StartSettings
from aggmatch.models import Network


@dataclass(frozen=True, kw_only=True)
class Config(StartSettings):
    """Section `method` of FixMatch."""

    threshold: Fraction = 0.95
    """τ: a pseudo label is used if its probability is at least this."""
    unlabeled_weight: NonNegative = 1.0
    """λ: weight of the unlabelled loss."""
    alignment: Target = "none"
    """Target of the distribution alignment of predictions, which the threshold then sees: none, equal classes, or the
    class shares of the labels."""
    window: Count = 32
    """Batches over which the alignment takes its mean."""
    targets: Literal["hard", "soft"] = "hard"
    """Whether the target is the most probable class or, as usual with alignment, the whole distribution."""
    shrinking_weight: NonNegative = 0.0
    """λ_c: weight of the loss of unsure images, in which the most probable class is distinguished from those that are
    not confused with it (ShrinkMatch); 0 for none."""


class FixMatch(StartingMethod[Config]):
    """Confident predictions on weak views are the targets of strong views."""

    config_type = Config
    reference = "Sohn et al., FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence, 2020"

    def __init__(self, config: Config, problem: Problem) -> None:
        super().__init__(config, problem)
        self.align = build_alignment(problem, config.alignment, config.window)
        self.shrinking = Shrinking(problem, config.threshold) if config.shrinking_weight else None

    def build_head(self) -> nn.Module:
        """Return the head of the first steps, with a classifier of unsure images beside it if there is one."""
        head = super().build_head()
        return self.shrinking.build_head(head) if self.shrinking else head

    def learn(self, batch: Batch, online: Network, average: Network) -> StepResult:
        """L = mean CE(y, p(α(x))) + λ · mean 1[max p(α(u)) ≥ τ] · CE(argmax p(α(u)), p(A(u))).

        Plus λ_c times the loss of unsure images, `Shrinking.loss`.
        """
        others, strong, weak = self.joint_pass(batch, online)
        probs_BY = self.align(weak.logits.detach().softmax(-1))
        confidence_B, target_B = probs_BY.max(-1)
        pseudo = PseudoLabels(target_B, self.start.begun * (confidence_B >= self.config.threshold))

        loss, parts = self.start.loss(others, batch, online)
        if self.config.targets == "soft":
            cost_B = soft_cross_entropy(probs_BY, strong.logits)
        else:
            cost_B = F.cross_entropy(strong.logits, target_B, reduction="none")
        loss_unlabeled = (pseudo.weight * cost_B).mean()
        loss = loss + self.config.unlabeled_weight * loss_unlabeled
        parts |= {"loss_unlabeled": loss_unlabeled, "confidence": confidence_B.mean()}
        if self.shrinking:
            parts["loss_shrinking"] = self.start.begun * self.shrinking.loss(probs_BY, strong.feature, online)
            loss = loss + self.config.shrinking_weight * parts["loss_shrinking"]
        return StepResult(loss, parts, pseudo)


METHOD = FixMatch
