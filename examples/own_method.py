"""A method of your own in one class, trained on digits: python own_method.py

The same file works on the command line: aggmatch train digits --method own_method.py:ConfidenceMatch
"""

import argparse
from dataclasses import dataclass

import torch.nn.functional as F

import aggmatch
from aggmatch.config import NonNegative
from aggmatch.methods import forward_together


@dataclass(frozen=True, kw_only=True)
class Config(aggmatch.Settings):
    """Section `method` of the settings."""

    unlabeled_weight: NonNegative = 1.0
    """Weight of the unlabelled loss."""


class ConfidenceMatch(aggmatch.Method[Config]):
    """FixMatch without a threshold: each pseudo label is weighted by its confidence."""

    config_type = Config
    views = aggmatch.Views(labeled=("weak",), unlabeled=("weak", "strong"))

    def step(self, batch: aggmatch.Batch, online: aggmatch.Network, average: aggmatch.Network) -> aggmatch.StepResult:
        """Return the loss of one batch."""
        labeled, weak, strong = forward_together(online, *batch.labeled, *batch.unlabeled)
        confidence, target = weak.logits.detach().softmax(-1).max(-1)
        loss_labeled = F.cross_entropy(labeled.logits, batch.labels)
        loss_unlabeled = (confidence * F.cross_entropy(strong.logits, target, reduction="none")).mean()
        loss = loss_labeled + self.config.unlabeled_weight * loss_unlabeled
        return aggmatch.StepResult(loss, pseudo=aggmatch.PseudoLabels(target, confidence))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", default="runs/own-method")
    arguments = parser.parse_args()
    changes = {"data.name": "digits", "method.name": f"{__file__}:ConfidenceMatch", "train.steps": arguments.steps}
    *_, last = aggmatch.start(aggmatch.resolve(changes), arguments.out).train()
    print(f"test accuracy {last['accuracy_average']:.1f} %, pseudo labels right {100 * last['pseudo_precision']:.1f} %")
