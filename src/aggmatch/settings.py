"""The whole configuration of a run, merged from recipes, files and the command line."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from aggmatch.augment.settings import ViewSettings
from aggmatch.config import (
    Changes,
    Count,
    Fraction,
    Layer,
    Natural,
    NonNegative,
    Positive,
    Range,
    Settings,
    as_layers,
    flatten,
    merge,
    no_section,
    sections,
)
from aggmatch.data import DataSet, DataSettings, drawn_settings, is_own_images, load_for
from aggmatch.errors import unknown
from aggmatch.methods import load_method
from aggmatch.models import ModelSettings
from aggmatch.models.pretrained import BackboneUse
from aggmatch.own_recipe import own_recipe
from aggmatch.recipes import (
    ANY,
    DATA,
    METHOD,
    NAMED,
    NAMED_ON,
    OWN,
    PREFERRED,
    SHARES,
)
from aggmatch.registry import PARTS, absolute
from aggmatch.validate import InvalidValue

CADENCE = ("log_every", "evaluate_every")
"""Settings of section `train` that say how often a run logs and evaluates, not what it learns."""
FEWEST = 20
"""Least number of log lines and evaluations of a run, unless the user sets how often they happen."""


@dataclass(frozen=True, kw_only=True)
class OptimSettings(Settings):
    """Section `optim`: the optimizer. The defaults are those of FixMatch."""

    optimizer: Literal["sgd", "lars"] = "sgd"
    """lars: SGD that moves every kernel in proportion to its norm, for large batches and learning rates."""
    lr: Positive = 0.03
    """η: largest learning rate. It falls as η·cos(7πk/16K), or to `final`."""
    final: Fraction | None = None
    """Learning rate at the last step as a share of η, reached along half a cosine; null for η·cos(7πk/16K)."""
    warmup: Annotated[float, Range(0, 0.9)] = 0.0
    """Share of the steps in which the learning rate grows linearly to η, before it falls over the others."""
    warmup_from: Fraction = 0.0
    """Learning rate at the first step of the warm-up, as a share of η."""
    momentum: Fraction = 0.9
    """Momentum."""
    nesterov: bool = True
    """Whether the momentum is Nesterov's."""
    weight_decay: NonNegative = 5e-4
    """L2 penalty on kernels; BatchNorm and biases are exempt."""
    trust: Positive = 1e-3
    """t: with `lars`, the step of a kernel as a share of its norm, times the learning rate."""
    backbone_rate: Positive = 0.1
    """With train.backbone=finetune, learning rate of the pretrained layers as a share of that of the others."""
    average: Fraction = 0.999
    """λ_m: decay of the weight average, which is AggMatch's momentum network."""
    average_warmup: bool = True
    """Whether λ_m starts small, as min(λ_m, (1+k)/(10+k)); it reaches 0.999 after 9,000 steps."""


@dataclass(frozen=True, kw_only=True)
class TrainSettings(Settings):
    """Section `train`: number of steps, batches, and how often to log and evaluate."""

    steps: Annotated[int, Range(1, 2**24)] = 2**20  # float32 counts exactly up to here
    """K: number of steps; the learning-rate schedule spans them."""
    batch: Count = 64
    """B: labelled images of a step."""
    unlabeled_ratio: Count = 7
    """µ: unlabelled images of a step for each labelled one."""
    backbone: BackboneUse = "scratch"
    """scratch: all layers are trained from random weights. finetune: from pretrained weights. frozen: a pretrained
    backbone computes features once, and a small network learns on them."""
    start_from: str | None = None
    """Folder of an earlier run whose networks are the start of this one; null to start with new ones."""
    linear_start: bool = False
    """With train.backbone=finetune: whether the first classifier is a linear one that trains itself on the features of
    the pretrained backbone; otherwise it has random weights. `start_from` comes before it."""
    seed: Natural = 0
    """Seed of weights, order of images and views, together with the fold."""
    evaluated: Literal["average", "online"] = "average"
    """Network whose accuracy is reported and which is saved as the model."""
    log_every: Count = 100
    """Steps between two lines of metrics; unless it is set, at most a twentieth of `steps`."""
    evaluate_every: Count = 5000
    """Steps between two evaluations on the test set; unless it is set, at most a twentieth of `steps`."""
    exact_gradient: bool = False
    """Whether images that only give targets, such as the weak views of FixMatch, have a backward pass, because they
    share BatchNorm's statistics. Otherwise the other images represent them, which is faster (docs/decisions/0004)."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Arithmetic of the network. auto: bfloat16 autocast on CUDA, float32 on a CPU."""
    batchnorm: Literal["sync", "local", "fixed"] = "sync"
    """Statistics by which BatchNorm normalises. sync: of the whole batch, also if several processes share it. local: of
    the rows of each process, which is faster but changes the result (docs/distributed.md). fixed: those that a
    pretrained backbone came with, for train.backbone=finetune."""
    batchnorm_memory: Fraction | None = None
    """Share of the steps that BatchNorm's running statistics remember, by which a network normalises when it is
    evaluated. They never remember more steps than the backbone's own, nor fewer than ten; null for the backbone's own,
    which are 1,000 in Wide ResNets. Of the methods here, only FeatMatch uses these statistics in training."""


@dataclass(frozen=True, kw_only=True)
class RuntimeSettings(Settings):
    """Section `runtime`: where and how a run computes. Resuming may change it: it does not change what is learned."""

    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, or `auto` for the best one available."""
    threads: Annotated[int, Range(0, 1024)] = 0
    """CPU threads. 0: one for networks under 500,000 weights, which more would slow down, else torch's own number."""
    place: Literal["auto", "device", "host", "disk"] = "auto"
    """Where the training images are: on the device, in the memory of the host, or in a file on disk. auto: the first
    of them that has room, where they take at most half of the free memory (docs/performance.md)."""
    data_dir: str = "data"
    """Folder of the downloaded data sets."""
    cache_dir: str | None = None
    """Folder of cached files, such as decoded images and features; null for the user's cache folder."""
    checkpoint_every: Count = 5000
    """Steps between two checkpoints."""
    snapshots: tuple[Fraction, ...] = (0.1, 0.5, 1.0)
    """Shares of the steps after which networks and method are saved for analyses; empty saves disk space."""
    snapshot_steps: tuple[Count, ...] = ()
    """Further steps after which they are saved, such as those of the paper's figures (docs/analysis.md)."""
    graph: bool = True
    """Whether the whole step runs as one CUDA graph on CUDA."""
    tensorboard: bool = False
    """Whether metrics are also written for TensorBoard (extra `track`)."""


@dataclass(frozen=True, kw_only=True)
class RunSettings(Settings):
    """The whole configuration of a run, one field per section; `resolve` makes it.

    Example: `resolve({"data.name": "digits", "train.steps": 200}).train.steps` is 200.
    """

    derived: ClassVar[tuple[str, ...]] = ("method_name",)
    recipe: str = "paper"
    """Named recipe that the defaults come from: `paper`, `cold-start` and `neighbours` for a few labels per class,
    `frozen` and `finetune` for a pretrained backbone (`train.backbone`)."""
    method_name: str
    """The setting `method.name`."""
    method: Settings
    """Section `method`, whose type depends on the method."""
    data: DataSettings = field(default_factory=DataSettings)
    views: ViewSettings = field(default_factory=ViewSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    optim: OptimSettings = field(default_factory=OptimSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.train.backbone == "frozen":
            for name in ("rotation_weight", "contrast_steps", "propagation_steps"):
                if getattr(self.method, name, 0) > 0:
                    raise InvalidValue(
                        f"method.{name}", "must be 0 with train.backbone=frozen, whose features are not learned"
                    )
        alone = getattr(self.method, "steps_before", 0)
        if alone >= self.train.steps:
            raise InvalidValue(
                "method.propagation_steps",
                f"and method.contrast_steps are {alone} steps in all, and leave none of train.steps={self.train.steps} "
                f"for the method",
            )
        if self.train.batchnorm == "fixed" and self.train.backbone != "finetune":
            raise InvalidValue("train.batchnorm", "must be sync or local, unless train.backbone=finetune")
        if self.train.linear_start and self.train.backbone != "finetune":
            raise InvalidValue("train.linear_start", "must be false, unless train.backbone=finetune")

    def to_dict(self) -> dict[str, Any]:
        """Return nested plain values, as `config.json` holds them; the name of the method is in its section."""
        values = super().to_dict()
        return values | {"method": {"name": values.pop("method_name"), **values["method"]}}

    def layer(self, source: str) -> Layer:
        """All settings as one layer, which wins over earlier layers.

        How often a run logs and evaluates is left out: it changes nothing that is learned, and a stored run keeps it.
        """
        values = self.to_dict()
        train = {name: value for name, value in values["train"].items() if name not in CADENCE}
        return Layer(source, values | {"train": train})

    @property
    def parts(self) -> list[str]:
        """Names of method, data set, network and views, which may be code from elsewhere."""
        return parts_named(self.to_dict())

    def load_data(self, *, download: bool = False) -> DataSet:
        """Read the data set. download: whether missing files of it are fetched."""
        return load_for(self.data, self.runtime.data_dir, download, cache_dir=self.runtime.cache_dir)

    def identity(self) -> dict[str, Any]:
        """The part of the configuration that decides the result."""
        return {name: section for name, section in self.to_dict().items() if name != "runtime"}


def resolve(changes: Changes, *, recipes: bool = True) -> RunSettings:
    """Return the configuration of a run: the recipe of its data set and method, then the changes; later values win.

    changes: dotted keys and values, or a sequence of `Layer`. Other settings get the value of the recipe, or else the
    default of their field. recipes: False for the configuration of an older run, which holds all settings that existed
    then; later ones get the default of their field, which is what the run did. Raises an `AggMatchError` for an
    unknown key or a wrong value.

    Example: `resolve({"data.name": "cifar10", "method.name": "fixmatch", "optim.lr": 0.01})`.
    """
    layers = [with_absolute_paths(layer) for layer in as_layers(changes)]
    for layer in layers:
        check_sections(layer)
    chosen, sources = merge(layers)
    data = chosen.get("data", {}).get("name", "digits")
    method = chosen.get("method", {}).get("name", "aggmatch")
    require_text("data.name", data, sources)
    require_text("method.name", method, sources)
    if "recipe" in chosen:
        check_recipe(chosen["recipe"], method, sources)
    if not recipes:
        return build(chosen, sources, method)
    below = default_layers(data, method, chosen)
    steps = merge([*below, *layers])[0].get("train", {}).get("steps", TrainSettings.steps)
    settings = build(*merge([*(fitted(layer, steps) for layer in below), *layers]), method)
    fixed, usual = set(chosen.get("train", {})), merge(below)[0].get("train", {})
    if usual.get("steps") == settings.train.steps:  # the recipe's cadence is made for its length
        fixed |= usual.keys()
    return replace(settings, train=often_enough(settings.train, fixed))


def default_layers(data: str, method: str, chosen: Mapping[str, Any]) -> list[Layer]:
    """Return the layers below those that a user chose: recipes of the data set and the method, and the named recipe.

    chosen: nested settings that the user chose, on which the recipes depend.
    """
    of_data = own_recipe(chosen) if is_own_images(data) else DATA.get(data, {})
    train = {name: of_data.get(f"train.{name}") for name in ("backbone", "steps")} | chosen.get("train", {})
    named = chosen.get("recipe") or default_recipe(data, method, train["backbone"], train["steps"])
    on_data = METHOD.get((OWN if is_own_images(data) else data, method), {})
    named_on_data = NAMED_ON.get(data, {}).get(named, {}).get(method, {})
    values = NAMED[named].get(ANY, {}) | NAMED[named].get(method, {}) | named_on_data
    return [
        Layer(f"the recipe of {data}", of_data),
        Layer(f"the defaults of {method}", load_method(method).defaults),
        Layer(f"the recipe of {method} on {data}", {} if named in get_args(BackboneUse) else on_data),
        Layer(f"the recipe {named}", {**values, "recipe": named}),
    ]


def default_recipe(data: str, method: str, use: str | None, steps: object) -> str:
    """Return the name of the recipe that a run has by default.

    use: of its backbone. steps: of the run; None for the default, and something wrong counts as 0.
    """
    if use in ("frozen", "finetune"):
        return use
    if is_own_images(data):
        return RunSettings.recipe
    by_length = PREFERRED.get((data, method)) or PREFERRED.get((ANY, method)) or {0: RunSettings.recipe}
    length = TrainSettings.steps if steps is None else steps if isinstance(steps, int) else 0
    return by_length[max((least for least in by_length if least <= length), default=0)]


def fitted(recipe: Layer, steps: object) -> Layer:
    """Return the layer with shorter first steps, if those of a recipe would take too much of a run."""
    if not isinstance(steps, int) or steps < 1:  # an error that the validator reports
        return recipe
    most = {key: min(recipe.values[key], steps // share) for key, share in SHARES.items() if recipe.values.get(key)}
    return Layer(recipe.source, {**recipe.values, **most})


def often_enough(train: TrainSettings, fixed: Collection[str]) -> TrainSettings:
    """Return the settings with a log line and an evaluation in every twentieth of the steps, unless these are fixed.

    An evaluation falls on a log step where that is possible, so that its record also holds the loss.
    """
    longest = max(train.steps // FEWEST, 1)
    log = train.log_every if "log_every" in fixed else min(train.log_every, longest)
    evaluate = train.evaluate_every
    if "evaluate_every" not in fixed and evaluate > longest:
        evaluate = longest - longest % log or longest
    return replace(train, log_every=log, evaluate_every=evaluate)


def build(values: Mapping[str, Any], sources: Mapping[str, str], method_name: str) -> RunSettings:
    """Return validated settings from nested values."""
    values = dict(values)
    method_values = {key: value for key, value in dict(values.pop("method", {})).items() if key != "name"}
    method = load_method(method_name).config_type.build(method_values, sources, "method.", method_name)
    return RunSettings.build({**values, "method_name": method_name, "method": method}, sources)


def check_sections(layer: Layer) -> None:
    """Raise `InvalidValue` for a value in place of a section: `method=fixmatch` instead of `method.name=fixmatch`."""
    if "method_name" in layer.values:
        raise InvalidValue("method_name", "does not exist; choose the method with method.name", layer.source)
    for key, section in sections(RunSettings):
        if key in layer.values:
            raise no_section(key, layer.values[key], section, layer.source)


def check_recipe(named: Any, method: str, sources: Mapping[str, str]) -> None:
    """Raise an `AggMatchError` if there is no recipe of this name, or none for the method."""
    require_text("recipe", named, sources)
    if named not in NAMED:
        raise unknown("recipe", named, NAMED, see="aggmatch list recipes")
    if NAMED[named] and not {method, ANY} & NAMED[named].keys():
        problem = f"must be {RunSettings.recipe} for {method}: {named} is for {', '.join(NAMED[named])}"
        raise InvalidValue("recipe", problem, sources.get("recipe", ""))


def require_text(key: str, value: object, sources: Mapping[str, str]) -> None:
    """Raise `InvalidValue` if the value of a setting is not a string."""
    if not isinstance(value, str):
        raise InvalidValue(key, f"must be a string, got {value!r}", sources.get(key, ""))


def with_absolute_paths(layer: Layer) -> Layer:
    """Return the layer with absolute paths of code files, which are valid in every working directory."""
    named = {key: absolute(layer.values[key]) for key in PARTS if isinstance(layer.values.get(key), str)}
    return Layer(layer.source, {**layer.values, **named}) if named else layer


def resolve_quick(layers: Sequence[Layer]) -> RunSettings:
    """Return settings as `resolve` does, but with frozen features where images of your own would be fine-tuned.

    It is for many short runs in a row. A use of the backbone that a layer chooses stays.
    """
    settings = resolve(layers)
    if settings.train.backbone != "finetune" or any("train.backbone" in layer.values for layer in layers):
        return settings
    return resolve([Layer("many short runs", {"train.backbone": "frozen"}), *layers])


def with_split(layers: Sequence[Layer]) -> list[Layer]:
    """Return the layers of a new run, with one more for the labels and fold of a split that they reuse.

    Raises `InvalidValue` if a layer sets other labels or another fold.
    """
    chosen = {key: (value, layer.source) for layer in layers for key, value in layer.values.items()}
    split, _ = chosen.get("data.split", (None, ""))
    if not isinstance(split, str):
        return list(layers)
    drawn = drawn_settings(Path(split))
    for key, own in drawn.items():
        value, source = chosen.get(key, (None, ""))
        if value not in (None, own):
            raise InvalidValue(key, f"must be omitted or {own}, as in the split {split}, got {value!r}", source)
    return [*layers, Layer(f"the split {split}", drawn)]


def parts_named(values: Mapping[str, Any]) -> list[str]:
    """Return the names of parts (method, data set, network, views) among nested or dotted values."""
    flat = flatten(values)
    return [flat[key] for key in PARTS if isinstance(flat.get(key), str)]
