"""Supervised training on the labelled images alone."""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F

from aggmatch.config import Settings
from aggmatch.methods.base import Batch, Method, Problem, StepResult, Views
from aggmatch.models import Network


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Section `method` of supervised training."""

    view: Literal["weak", "strong"] = "weak"
    """View of the labelled images."""


class Supervised(Method[Config]):
    """Cross-entropy on the labelled images alone: the baseline that every other method should beat."""

    config_type = Config
    baseline = True

    def __init__(self, config: Config, problem: Problem) -> None:
        super().__init__(config, problem)
        self.views = Views(labeled=(config.view,))

    def step(self, batch: Batch, online: Network, average: Network) -> StepResult:
        """L = mean CE(y, p(α(x)))."""
        (images,) = batch.labeled
        loss = F.cross_entropy(online(images).logits, batch.labels)
        return StepResult(loss, {"loss_labeled": loss})


METHOD = Supervised
