"""What a method is: it names the views it wants and turns a batch of them into a loss."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from aggmatch.config import Settings
from aggmatch.functional import Aggregate, PseudoLabels
from aggmatch.models import Network, Output


@dataclass(frozen=True, kw_only=True)
class Views:
    """Names of the views a method wants of each labelled and each unlabelled image, in order; see `augment`."""

    labeled: tuple[str, ...] = ("weak",)
    unlabeled: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What a method may know of the task when it is made."""

    classes: int
    features: int
    """D, width of the network's feature."""
    labels: int
    """Number of labelled images."""
    images: int
    """Number of training images, the labelled ones included."""
    mixed: bool = False
    """Whether the network computes in bf16, so that no more is worth keeping of its features."""
    unlabeled: int | None = None
    """Number of images used without a label; None if that is all training images."""
    class_shares: tuple[float, ...] = ()
    """Share of each class among the labels; empty if unknown."""

    @property
    def unlabeled_images(self) -> int:
        """Number of images used without a label."""
        return self.images if self.unlabeled is None else self.unlabeled


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One step's images, on the training device. True labels of unlabelled images are not among them."""

    labeled: tuple[Tensor, ...]
    """Views of the labelled images, each (B, C, H, W) uint8."""
    labels: Tensor
    """Their given labels, (B,)."""
    labeled_index: Tensor
    """Their indices in the training set, (B,)."""
    labeled_position: Tensor
    """Their positions among the labelled images, (B,)."""
    unlabeled: tuple[Tensor, ...]
    """Views of the unlabelled images, each (µB, C, H, W) uint8; empty where the method wants none."""
    unlabeled_index: Tensor
    """Their indices in the training set, (µB,)."""
    progress: Tensor
    """Share of the steps that is done, in [0, 1), a 0-d tensor: ramps read it."""
    generator: torch.Generator
    """The only source of randomness of a step."""


@dataclass(frozen=True)
class StepResult:
    """What a step computed. Everything stays on the device."""

    loss: Tensor
    """0-d, to be minimised."""
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    """0-d tensors for the log, detached."""
    pseudo: PseudoLabels | None = None
    """Pseudo labels of the unlabelled batch, which the loop compares with the truth where that is known."""


class Attention(NamedTuple):
    """How much every stored example counts for every query."""

    share: Mapping[str, Tensor]
    """By term of the similarity, and under `all` with all terms: (B, Q), rows summing to 1."""
    term: Mapping[str, Tensor]
    """The terms of the similarity themselves, (B, Q)."""


class Examples(NamedTuple):
    """The stored examples, Q of them; empty slots are not filled."""

    probs: Tensor
    """Class distributions they hold, (Q, Y)."""
    label: Tensor
    """The class under which each is stored, (Q,)."""
    source: Tensor
    """The training image each came from, (Q,); −1 if unknown."""
    given: Tensor
    """Whether that image carries a given label, (Q,)."""
    filled: int
    """Number of filled slots."""


class Explainer(Protocol):
    """Tells where the pseudo labels of a method come from. Asked twice, it answers the same."""

    refines: bool
    """Whether the refined distribution is the method's pseudo label; otherwise the network's own prediction is."""
    subsets: int
    """Number of voters, those without an example included."""
    voters: int
    """Number of voters that have an example."""

    def refine(self, feature_BD: Tensor, probs_BY: Tensor) -> Aggregate:
        """Refine predictions by the stored examples."""

    def attention(self, feature_BD: Tensor, probs_BY: Tensor) -> Attention:
        """How much every stored example counts; takes B × Q memory."""

    def examples(self) -> Examples:
        """The stored examples."""


C = TypeVar("C", bound=Settings)


class Method(nn.Module, Generic[C]):
    """A way to learn from labelled and unlabelled images.

    A method is one file with a `Config` and a subclass of this; the file's name is its name on the command line. What
    it remembers between steps (queues, running statistics) are persistent buffers, so checkpoints need no code of it.
    """

    config_type: ClassVar[type[Settings]] = Settings
    """Section `method` of the configuration."""
    reference: ClassVar[str] = ""
    """The paper it is from."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Dotted settings that the method prefers to the common recipe, such as its ratio of unlabelled images."""
    balanced: ClassVar[bool] = False
    """Whether every labelled batch must hold equally many images of each class."""
    predictor: ClassVar[tuple[str, ...]] = ()
    """Names of the buffers that `predict` needs; they are saved with the model."""
    watched: ClassVar[str] = "loss_labeled"
    """Name of the part of a step's loss that falls while the method learns."""
    untrained: ClassVar[tuple[str, ...]] = ()
    """Modules of the network that the method has no use for: its loss does not reach them."""
    baseline: ClassVar[bool] = False
    """Whether it learns from the labels alone, so that others should be better."""
    explains: ClassVar[bool] = False
    """Whether `explainer` has something to tell about a pseudo label."""

    views: Views = Views()
    average_statistics: Literal["copied", "own"] = "copied"
    """BatchNorm statistics of the averaged network: those of the online one, or its own where the method runs it."""

    def __init__(self, config: C, problem: Problem) -> None:
        super().__init__()
        self.config, self.problem = config, problem

    def step(self, batch: Batch, online: Network, average: Network) -> StepResult:
        """The loss of one batch. No host reads: a step must be able to run as a captured graph."""
        raise TypeError(f"{type(self).__name__} does not define step().")

    def build_head(self) -> nn.Module:
        """The module that becomes `network.head` in the online and the averaged network."""
        return nn.Identity()

    def refresh(self, step: int) -> None:
        """Work between steps, done every now and then on the host (such as clustering); called before every step."""

    def prepare(self, network: Network, labeled: Tensor, labels: Tensor) -> None:
        """Get ready to predict with a network: all labelled images (n, C, H, W) and their given labels (n,)."""

    def predict(self, network: Network, images: Tensor) -> Tensor:
        """Class probabilities of uint8 images, (B, Y); the one path by which every method is evaluated."""
        probs: Tensor = network(images).logits.softmax(-1)
        return probs

    def explainer(self) -> Explainer | None:
        """What tells reports where pseudo labels come from; None if the method has no more than the prediction."""
        return None

    @classmethod
    def memory_slots(cls, config: C, classes: int) -> list[int]:
        """The slots of each ring of a memory whose fill `status` logs as `queue_fill`; empty without a memory."""
        return []

    def status(self) -> dict[str, Tensor]:
        """Further tensors for the log, asked for on log steps only."""
        return {}


def forward_together(network: Network, *batches: Tensor, targets: Tensor | None = None) -> list[Output]:
    """One forward pass over several batches, so that BatchNorm sees them together.

    `targets`, if any, come last: images of which only targets are wanted. They take part in BatchNorm's statistics, so
    the forward pass is as if all learnt, but have no backward pass, which spares almost half of it.
    """
    parts = batches if targets is None else (*batches, targets)
    return network(torch.cat(parts), targets=0 if targets is None else len(targets)).split(list(map(len, parts)))
