"""FixMatch with distribution alignment: predictions are aligned to equal classes before the threshold."""

from dataclasses import dataclass
from typing import Literal

from aggmatch.methods import fixmatch
from aggmatch.methods.alignment import Target


@dataclass(frozen=True, kw_only=True)
class Config(fixmatch.Config):
    """Section `method` of FixMatch with distribution alignment."""

    alignment: Target = "uniform"
    """Target of the distribution alignment of predictions, which the threshold then sees: none, equal classes, or the
    class shares of the labels."""
    targets: Literal["hard", "soft"] = "soft"
    """Whether the target is the whole aligned distribution or its most probable class."""


class AlignedFixMatch(fixmatch.FixMatch):
    """FixMatch with predictions aligned to equal classes, and whole distributions as targets."""

    config_type = Config
    reference = (
        "Berthelot et al., ReMixMatch: Semi-Supervised Learning with Distribution Alignment and Augmentation "
        "Anchoring, 2020; in FixMatch: Li et al., CoMatch, 2021"
    )


METHOD = AlignedFixMatch
