"""ShrinkMatch: aligned FixMatch that also learns from unsure images, by classes that are not confused with theirs."""

from dataclasses import dataclass

from aggmatch.config import NonNegative
from aggmatch.methods import fixmatch_da


@dataclass(frozen=True, kw_only=True)
class Config(fixmatch_da.Config):
    """Section `method` of ShrinkMatch."""

    shrinking_weight: NonNegative = 1.0
    """λ_c: weight of the loss of unsure images, in which the most probable class is distinguished from those that are
    not confused with it; 0 for none."""


class ShrinkMatch(fixmatch_da.AlignedFixMatch):
    """Aligned FixMatch in which unsure images tell their class from those that are not confused with it."""

    config_type = Config
    reference = "Yang et al., Shrinking Class Space for Enhanced Certainty in Semi-Supervised Learning, 2023"


METHOD = ShrinkMatch
