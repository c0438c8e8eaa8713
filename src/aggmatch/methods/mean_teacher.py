"""Mean Teacher: the average of the weights predicts on one weak view what the network should predict on another."""

from dataclasses import dataclass

from aggmatch.config import NonNegative
from aggmatch.methods import pi_model
from aggmatch.methods.base import Batch, Method, StepResult, Views
from aggmatch.models import Network


@dataclass(frozen=True, kw_only=True)
class Config(pi_model.Config):
    """Section `method` of Mean Teacher. The teacher is the weight average (λ_m, section `optim`)."""

    unlabeled_weight: NonNegative = 50.0
    """λ: weight of the unlabelled loss after the ramp."""


class MeanTeacher(Method[Config]):
    """The averaged network's prediction on one weak view is the target of another view of the same image."""

    # Choice: λ = 50 and the linear ramp are those of the reruns that published tables quote (paper: up to 100, along a
    # Gaussian).

    config_type = Config
    reference = (
        "Tarvainen and Valpola, Mean Teachers Are Better Role Models: Weight-averaged Consistency Targets Improve "
        "Semi-supervised Deep Learning Results, 2017"
    )
    defaults = {"train.unlabeled_ratio": 1}
    views = Views(labeled=("weak",), unlabeled=("weak", "weak"))
    # Choice: as in those reruns, the average has no statistics of its own. As the teacher it normalises by its batch.
    # It is evaluated with the online network's running statistics, which come from labelled batches.
    average_statistics = "copied"

    def step(self, batch: Batch, online: Network, average: Network) -> StepResult:
        """L = mean CE(y, p(α(x))) + λ · r(t) · mean (p_m(α₁(u)) − p(α₂(u)))² over images and classes, p_m fixed."""
        return pi_model.consistency_step(self.config, batch, online, teacher=average)


METHOD = MeanTeacher
