"""The interface of a method: it names the views it needs and turns a batch of them into a loss.

To write a method, subclass `Method`, set `config_type` and `views`, and define `step`. Everything else is optional.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from aggmatch.config import Settings
from aggmatch.errors import AggMatchError
from aggmatch.functional import Aggregate, PseudoLabels
from aggmatch.models import Network, Output


@dataclass(frozen=True, kw_only=True)
class Views:
    """Names of the views that a method needs of each image, in order; see `aggmatch list views`.

    A name may occur twice: the two views are drawn independently. Example: `Views(unlabeled=("weak", "strong"))`.
    """

    labeled: tuple[str, ...] = ("weak",)
    unlabeled: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What a method knows about the task when it is built.

    Example: `Problem(classes=10, features=128, labels=40, images=50_000)`.
    """

    classes: int
    """Y, number of classes."""
    features: int
    """D, width of the network's feature."""
    labels: int
    """Number of labelled images."""
    images: int
    """Number of training images, the labelled ones included."""
    mixed: bool = False
    """Whether the network computes in bfloat16; features then need not be stored in a wider type."""
    unlabeled: int | None = None
    """Number of images used without a label; None if all training images are."""
    class_shares: tuple[float, ...] = ()
    """Share of each class among the labels; empty if unknown."""

    @property
    def unlabeled_images(self) -> int:
        """Number of images used without a label."""
        return self.images if self.unlabeled is None else self.unlabeled


class TrainingImages(Protocol):
    """All N training images, on the training device or elsewhere: a tensor, or something that is indexed like one.

    Example: `pixels[torch.tensor([3, 5])]` has shape (2, C, H, W).
    """

    @property
    def shape(self) -> torch.Size:
        """(N, C, H, W)."""

    def __len__(self) -> int:
        """N."""

    def __getitem__(self, index: Tensor, /) -> Tensor:
        """Return the images with these numbers, (n,), as uint8 (n, C, H, W) on the training device."""


@dataclass(frozen=True, kw_only=True)
class TrainingSet:
    """The training images of a run; the tensors are on the training device.

    Example: `training.pixels[training.labeled]` are the labelled images.
    """

    pixels: TrainingImages
    """All training images, also those that the run does not use."""
    labeled: Tensor
    """Positions of the labelled images, (n,) int64."""
    labels: Tensor
    """Their given labels, (n,) int64."""
    unlabeled: Tensor
    """Positions of the images that are used without a label, (m,) int64."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The images of one step, on the training device. It does not hold the true labels of unlabelled images.

    Example: `weak, strong = batch.unlabeled`, for a method with two views of unlabelled images.
    """

    labeled: tuple[Tensor, ...]
    """One tensor for each of `views.labeled`, (B, C, H, W) uint8."""
    labels: Tensor
    """Given labels of the labelled images, (B,) int64."""
    labeled_index: Tensor
    """Positions of the labelled images in the training set, (B,) int64."""
    labeled_position: Tensor
    """Positions of the labelled images among all labelled ones, (B,) int64."""
    unlabeled: tuple[Tensor, ...]
    """One tensor for each of `views.unlabeled`, (µB, C, H, W) uint8."""
    unlabeled_index: Tensor
    """Positions of the unlabelled images in the training set, (µB,) int64."""
    progress: Tensor
    """Share of the steps done so far, in [0, 1), a 0-d tensor. Ramps use it."""
    generator: torch.Generator
    """Source of all random numbers of a step, on the training device."""


@dataclass(frozen=True)
class StepResult:
    """What a step computed. All tensors stay on the device.

    Example: `StepResult(loss, {"loss_labeled": loss_labeled}, PseudoLabels(target, weight))`.
    """

    loss: Tensor
    """The value to minimise, 0-d."""
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    """Name in the log → 0-d tensor. They are detached here, so a method need not do it."""
    pseudo: PseudoLabels | None = None
    """Pseudo labels of the unlabelled batch. The trainer compares them with the true labels, where these are known."""

    def __post_init__(self) -> None:
        wrong = [name for name, value in {**self.parts, "loss": self.loss}.items() if value.ndim]
        if wrong:
            raise AggMatchError(f"A method must return 0-d tensors for the log, but its {', '.join(wrong)} have rows.")
        object.__setattr__(self, "parts", {name: part.detach() for name, part in self.parts.items()})


# Explanations of pseudo labels, for the report. Shapes: B images, Q slots of the memory, D features, Y classes -------


class Attention(NamedTuple):
    """How much each stored example contributes to each refined prediction."""

    share: Mapping[str, Tensor]
    """Name of a term of the similarity → the shares by that term alone, (B, Q). The entry `all` has the shares by all
    terms together: p̄ = Σ share · probs. Each row sums to 1, or is 0 if the memory is empty."""
    term: Mapping[str, Tensor]
    """Name of a term of the similarity → its values, (B, Q)."""


class Examples(NamedTuple):
    """The slots of a memory, empty ones included."""

    probs: Tensor
    """Class distribution in each slot, (Q, Y)."""
    label: Tensor
    """The class under which each slot is stored, (Q,)."""
    source: Tensor
    """Position in the training set of the image in each slot, (Q,); −1 in an empty slot."""
    given: Tensor
    """Whether that image has a given label, (Q,) bool."""
    filled: int
    """Number of slots that are not empty."""


class Explainer(Protocol):
    """Explains pseudo labels by stored examples. The same question always gets the same answer.

    `Method.explainer` returns one for the memory of a snapshot; the report and `aggmatch explain` call it without
    gradients. features (B, D) and probs (B, Y) are the network's output for B images.
    """

    refines: bool
    """Whether the refined distribution is the method's pseudo label. If not, the network's own prediction is."""
    subsets: int
    """Number of subsets of the memory, empty ones included."""
    voters: int
    """Number of subsets that hold an example, and so vote."""

    def refine(self, feature_BD: Tensor, probs_BY: Tensor) -> Aggregate:
        """Return predictions refined by the stored examples, and the votes of the subsets."""

    def attention(self, feature_BD: Tensor, probs_BY: Tensor) -> Attention:
        """Return the contribution of each stored example. Takes B × Q memory: call it with few images at a time."""

    def examples(self) -> Examples:
        """Return the stored examples."""


C = TypeVar("C", bound=Settings)


class Method(nn.Module, Generic[C]):
    """A way to learn from labelled and unlabelled images.

    State that a method keeps between steps (queues, running statistics) belongs in persistent buffers: checkpoints,
    resuming and moves between devices then need no further code. The first line of the class docstring is the
    description in `aggmatch list methods`. C is the type of `config`.

    Order of calls: `__init__`, `build_head` and `begin` once; `refresh` and `step` for each step; `status` on log
    steps; `prepare`, then `predict`, for each evaluation. Example::

        class Mine(Method[Config]):
            config_type = Config
            views = Views(unlabeled=("weak", "strong"))

            def step(self, batch, online, average):
                weak_view, strong_view = batch.unlabeled
                labeled, strong, weak = forward_together(online, *batch.labeled, strong_view, targets=weak_view)
                loss_labeled = F.cross_entropy(labeled.logits, batch.labels)
                loss = loss_labeled + F.cross_entropy(strong.logits, weak.logits.argmax(-1))
                return StepResult(loss, {"loss_labeled": loss_labeled})
    """

    config_type: ClassVar[type[Settings]] = Settings
    """Dataclass of the method's settings, the section `method` of the configuration."""
    reference: ClassVar[str] = ""
    """The paper: authors, title, year."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Dotted key → value, where the method prefers other settings than the recipe: `{"train.unlabeled_ratio": 1}`."""
    balanced: ClassVar[bool] = False
    """Whether each labelled batch must hold equally many images of every class."""
    predictor: ClassVar[tuple[str, ...]] = ()
    """Names of the buffers that `predict` uses. They are saved with the trained model; other buffers are not."""
    watched: ClassVar[str] = "loss_labeled"
    """Name in `StepResult.parts` of a loss that falls while the method learns."""
    untrained: ClassVar[tuple[str, ...]] = ()
    """Names of the network's modules that the loss does not reach, such as `classifier`."""
    baseline: ClassVar[bool] = False
    """Whether the method uses labelled images alone. Reports compare the other methods with it."""
    explains: ClassVar[bool] = False
    """Whether `explainer` returns an explainer, so that the report shows where pseudo labels come from."""

    views: Views = Views()
    """The views in each batch. Set it in `__init__` if it depends on the settings; it may change with `stage`."""
    stage: int = 0
    """What `step` computes now. If later steps compute something else, such as without a task of the first steps,
    `refresh` changes the number when they begin, and the step is captured again. It may then log other values."""
    average_statistics: Literal["copied", "own"] = "copied"
    """BatchNorm statistics of the averaged network: copies of the online network's, or `own` if `step` runs the
    averaged network in training mode, which then updates its own."""

    def __init__(self, config: C, problem: Problem) -> None:
        super().__init__()
        self.config, self.problem = config, problem

    def step(self, batch: Batch, online: Network, average: Network) -> StepResult:
        """Return the loss of one batch.

        online: the network that is trained. average: the running average of its weights. Both are in training mode.
        A step runs as a captured CUDA graph: it must not read values on the host (`.item()`, `if tensor:`), and shapes
        must not depend on values. Update buffers in place.
        """
        raise TypeError(f"{type(self).__name__} does not define step().")

    def build_head(self) -> nn.Module:
        """Return a module with weights of the method's own. It becomes `head` of both networks and is trained."""
        return nn.Identity()

    def begin(self, online: Network, average: Network, training: TrainingSet) -> None:
        """Keep what `refresh` needs of the data; called once, before the first step of a run or of its resumption.

        online: the network that is trained. average: the running average of its weights. Do not store a network as an
        attribute: it would become a part; a tuple or a function that holds it does not.
        """

    def refresh(self, step: int) -> None:
        """Work outside the captured graph, such as clustering. Called before each step; `step` counts from 0."""

    def prepare(self, network: Network, labeled: Tensor, labels: Tensor) -> None:
        """Update what `predict` needs of all labelled images, (n, C, H, W) uint8, and their given labels, (n,)."""

    def predict(self, network: Network, images: Tensor) -> Tensor:
        """Return class probabilities, (B, Y), of images (B, C, H, W) uint8; `network` is in evaluation mode."""
        return network(images).logits.softmax(-1)

    def explainer(self) -> Explainer | None:
        """Return what explains pseudo labels by the current memory; None unless `explains`."""
        return None

    @classmethod
    def memory_slots(cls, config: C, classes: int) -> list[int]:
        """Return the capacity of each part of the method's memory, such as `[2048] * classes` for a queue per class.

        A method with a memory also returns the number of filled slots of each part from `status`, as `queue_fill`;
        the report draws both. Empty for a method without a memory.
        """
        return []

    @classmethod
    def needs_even_classes(cls, config: C) -> bool:
        """Return whether the method takes all classes to be equally frequent among the unlabelled images.

        The report warns if they are not. By default a method does if its setting `alignment` is `uniform`.
        """
        return getattr(config, "alignment", None) == "uniform"

    @classmethod
    def labeled_batch(cls, config: C, batch: int, counts: Sequence[int]) -> int:
        """Return the number of labelled images of a step. batch: `train.batch`. counts: labels of each class."""
        return batch

    def status(self) -> dict[str, Tensor]:
        """Return further values for the log: name → tensor, 0-d or (n,). Called on log steps only."""
        return {}


def forward_together(network: Network, *batches: Tensor, targets: Tensor | None = None) -> list[Output]:
    """Return the outputs of several batches from one forward pass, so that BatchNorm normalises them together.

    batches: images, each (B, C, H, W). targets: target-only images, whose output comes last. They count in BatchNorm's
    statistics but get no backward pass, which saves almost half of it if they are half of the images.

    Example: `labeled, strong, weak = forward_together(online, labeled_view, strong_view, targets=weak_view)`.
    """
    parts = batches if targets is None else (*batches, targets)
    return network(torch.cat(parts), targets=0 if targets is None else len(targets)).split(list(map(len, parts)))
