"""A method with first steps: the phases before it, and what it learns beside its pseudo labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from aggmatch.config import Count, Fraction, Natural, NonNegative, Positive, Settings
from aggmatch.functional import mean_cross_entropy
from aggmatch.methods.base import Batch, Method, Problem, StepResult, TrainingSet, Views, forward_together
from aggmatch.methods.start.contrast import Contrast
from aggmatch.methods.start.propagation import Propagation
from aggmatch.methods.start.rotation import TURNS, rotate_quarters, rotation_loss
from aggmatch.models import Network, Output
from aggmatch.validate import InvalidValue


@dataclass(frozen=True, kw_only=True)
class StartSettings(Settings):
    """Settings of the first steps, which methods add to their own. All are off by default."""

    labeled_views: Literal["weak", "both"] = "weak"
    """Views of labelled images that are learned: weak ones, or weak and strong ones in equal parts."""
    rotation_weight: NonNegative = 0.0
    """λ_r: weight of the rotation task; 0 for none. Switch it off for images without an up direction, such as aerial
    photographs."""
    rotated: Count = 256
    """Unlabelled images that each step rotates, a quarter of them by each of 0°, 90°, 180° and 270°."""
    rotation_steps: Natural = 0
    """Steps with the rotation task; later ones are faster, and log a rotation loss of 0. 0: all steps."""
    warmup: Natural = 0
    """Steps before pseudo labels count."""
    contrast_steps: Natural = 0
    """First steps of all, the contrast phase: features learn which two crops are of one image, and labels train the
    classifier alone. Section `views.crops` sets the crops."""
    contrast_temperature: Positive = 0.2
    """Temperature of the contrast."""
    propagation_steps: Natural = 0
    """Steps after the contrast phase in which pseudo labels are given labels that spread over the neighbours in the
    feature space of the average network. The method itself begins after both phases."""
    propagations: Count = 16
    """How often labels are propagated anew in these steps: every propagation_steps / propagations steps, rounded down,
    so that a remainder brings one more."""
    propagated: tuple[Fraction, ...] = (0.3, 0.75)
    """Share of the images whose propagated label counts, at first and at last; those with the clearest labels."""
    propagated_by_class: Fraction = 0.0
    """Part of these images that is chosen class by class; the rest are the clearest of all. With 0, a class that is
    nowhere clear is left out, and may be lost; with 1, the labels of such a class count although many are wrong."""
    neighbours: Count = 10
    """Neighbours of an image in the graph that labels spread over."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.propagated) != 2 or not 0 < self.propagated[0] <= self.propagated[1]:
            raise InvalidValue(
                "propagated", f"must be two shares above 0, the smaller first, got {list(self.propagated)}"
            )
        if self.contrast_steps and self.rotation_weight:
            raise InvalidValue("rotation_weight", "must be 0 with a contrast phase, whose head takes its place")

    @property
    def steps_before(self) -> int:
        """Steps of the phases before the method itself."""
        return self.contrast_steps + self.propagation_steps


class Start(nn.Module):
    """The first steps of a method: what it learns in addition to pseudo labels, and from which step these count.

    The step counter is a persistent buffer that exists only with a warm-up: other checkpoints have no such entry. The
    same is true of the propagated labels.
    """

    steps: Tensor  # 0-d, steps of the method, the current one included

    def __init__(self, config: StartSettings, problem: Problem) -> None:
        super().__init__()
        self.config, self.problem = config, problem
        self.rotating = config.rotation_weight > 0
        self.now = config.steps_before  # the step that `refresh` was called for; before that, the method itself
        if config.warmup:
            self.register_buffer("steps", torch.zeros(()))
        self.contrast = Contrast(config.contrast_temperature) if config.contrast_steps else None
        self.propagation = None
        if config.propagation_steps:
            self.propagation = Propagation(
                problem,
                steps=config.propagation_steps,
                times=config.propagations,
                shares=config.propagated,
                by_class=config.propagated_by_class,
                neighbours=config.neighbours,
            )

    @property
    def phase(self) -> Contrast | Propagation | None:
        """The phase before the method that runs now; None if the method itself does."""
        if self.now < self.config.contrast_steps:
            return self.contrast
        return self.propagation if self.now < self.config.steps_before else None

    def build_head(self) -> nn.Module:
        """The embedding of the contrast, or the classifier of quarter turns, features → 4, or nothing."""
        if self.contrast is not None:
            return self.contrast.build_head(self.problem.features)
        return nn.Linear(self.problem.features, TURNS) if self.config.rotation_weight else nn.Identity()

    def refresh(self, step: int) -> int:
        """Begin or end phases and tasks at their steps; returns the stage of the method (`Method.stage`)."""
        config = self.config
        own = step - config.steps_before
        over = 0 < config.rotation_steps <= own
        self.rotating = config.rotation_weight > 0 and not over
        self.now = step
        if isinstance(self.phase, Propagation):
            self.phase.refresh(step - config.contrast_steps)
        return int(0 < config.contrast_steps <= step) + int(0 < config.steps_before <= step) + int(over)

    def images(self, batch: Batch, weak_view: Tensor) -> list[Tensor]:
        """Batches to learn from in addition to pseudo labels: views of labelled images, then rotated images."""
        rotated = [rotate_quarters(weak_view, self.config.rotated)] if self.rotating else []
        return [*batch.labeled, *rotated]

    def loss(self, outputs: Sequence[Output], batch: Batch, online: Network) -> tuple[Tensor, dict[str, Tensor]]:
        """L_s + λ_r · L_r of the outputs for `images`, and the parts for the log.

        L_s: cross entropy of the labelled images, mean over their views; L_r: cross entropy of the quarter turns.
        """
        labeled = outputs[: len(batch.labeled)]
        loss = loss_labeled = mean_cross_entropy([output.logits for output in labeled], batch.labels)
        parts = {"loss_labeled": loss_labeled}
        if self.config.rotation_weight:
            parts["loss_rotation"] = torch.zeros_like(loss)
        if self.rotating:
            (rotated,) = outputs[len(batch.labeled) :]
            parts["loss_rotation"] = rotation_loss(rotated, online)
            loss = loss + self.config.rotation_weight * parts["loss_rotation"]
        return loss, parts

    def count_step(self) -> None:
        """Count a step of the method itself; called at its beginning."""
        if self.config.warmup:
            self.steps.add_(1)

    @property
    def begun(self) -> Tensor | float:
        """1 if the predictions of this step are learned, 0 during the warm-up: a factor of what is learned of them."""
        return (self.steps > self.config.warmup).float() if self.config.warmup else 1.0


S = TypeVar("S", bound=StartSettings)


class StartingMethod(Method[S]):
    """A method with the settings of the first steps, one weak and one strong view, and no other head.

    It defines `learn` in place of `step`, which adds `start.loss` of the first outputs of its `joint_pass`, and
    multiplies the weights of its pseudo labels by `start.begun`.
    """

    views = Views(labeled=("weak",), unlabeled=("weak", "strong"))

    def __init__(self, config: S, problem: Problem) -> None:
        super().__init__(config, problem)
        self.start = Start(config, problem)
        if config.labeled_views == "both":
            self.views = Views(labeled=("weak", "strong"), unlabeled=("weak", "strong"))

    def build_head(self) -> nn.Module:
        """Return the head of the task of the first steps, if there is one."""
        return self.start.build_head()

    def begin(self, online: Network, average: Network, training: TrainingSet) -> None:
        """Keep what the phases need of the data, and what they change for a time."""
        self.own = self.views, self.average_statistics
        if self.start.propagation is not None:
            self.start.propagation.begin(average, training)

    def refresh(self, step: int) -> None:
        """Begin or end the phases and the task of the first steps."""
        self.stage = self.start.refresh(step)
        if self.config.steps_before:
            phase = self.start.phase
            self.views, self.average_statistics = self.own if phase is None else (phase.views, "copied")

    def step(self, batch: Batch, online: Network, average: Network) -> StepResult:
        """Return the loss of the phase before the method, or of the method itself."""
        if self.start.phase is not None:
            return self.start.phase.step(batch, online)
        self.start.count_step()
        return self.learn(batch, online, average)

    def joint_pass(self, batch: Batch, online: Network) -> tuple[list[Output], Output, Output]:
        """Return the outputs for `start.images`, for the strong view, and for the weak one, which gives targets."""
        weak_view, strong_view = batch.unlabeled
        images = self.start.images(batch, weak_view)
        *others, strong, weak = forward_together(online, *images, strong_view, targets=weak_view)
        return others, strong, weak

    def learn(self, batch: Batch, online: Network, average: Network) -> StepResult:
        """Return the loss of the method itself, like `Method.step`."""
        raise TypeError(f"{type(self).__name__} does not define learn().")
