"""The whole configuration of a run, merged from recipes, files and the command line."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

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
from aggmatch.data import DataSettings, drawn_settings, is_folder
from aggmatch.errors import unknown
from aggmatch.methods import load_method
from aggmatch.models import ModelSettings
from aggmatch.recipes import DATA, FOLDER, METHOD, NAMED, NAMED_ON
from aggmatch.registry import PARTS, absolute
from aggmatch.validate import InvalidValue

CADENCE = ("log_every", "evaluate_every")
"""Settings of section `train` that say how often a run logs and evaluates, not what it learns."""
FEWEST = 20
"""Log lines and evaluations of a run, at least, unless somebody chose its cadence."""


@dataclass(frozen=True, kw_only=True)
class OptimSettings(Settings):
    """Section `optim`: the optimizer. The defaults are those of FixMatch."""

    optimizer: Literal["sgd", "lars"] = "sgd"
    """lars: SGD that moves every kernel in proportion to its norm, for large batches and learning rates."""
    lr: Positive = 0.03
    """η: initial learning rate; it falls as η·cos(7πk/16K)."""
    momentum: Fraction = 0.9
    """Nesterov momentum."""
    weight_decay: NonNegative = 5e-4
    """L2 penalty on kernels; BatchNorm and biases are exempt."""
    trust: Positive = 1e-3
    """t: with `lars`, the step of a kernel as a share of its norm, times the learning rate."""
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
    seed: Natural = 0
    """Seed of weights, order of images and views, together with the fold."""
    evaluated: Literal["average", "online"] = "average"
    """Network whose accuracy is reported and which is saved as the model."""
    log_every: Count = 100
    """Steps between two lines of metrics; unless it is set, at most a twentieth of `steps`."""
    evaluate_every: Count = 5000
    """Steps between two evaluations on the test set; unless it is set, at most a twentieth of `steps`."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Arithmetic of the network. auto: bfloat16 autocast on CUDA, float32 on a CPU."""


@dataclass(frozen=True, kw_only=True)
class RuntimeSettings(Settings):
    """Section `runtime`: where and how a run computes. Resuming may change it: it does not change what is learned."""

    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, or `auto` for the best one available."""
    threads: Annotated[int, Range(0, 1024)] = 0
    """CPU threads. 0: one for networks under 500,000 weights, which more would slow down, else torch's own number."""
    data_dir: str = "data"
    """Folder of the downloaded data sets."""
    checkpoint_every: Count = 5000
    """Steps between two checkpoints."""
    snapshots: tuple[Fraction, ...] = (0.1, 0.5, 1.0)
    """Shares of the steps after which networks and method are saved for analyses; empty saves disk space."""
    graph: bool = True
    """Whether the whole step runs as one CUDA graph on CUDA."""
    tensorboard: bool = False
    """Whether metrics are also written for TensorBoard (extra `track`)."""


@dataclass(frozen=True, kw_only=True)
class RunSettings(Settings):
    """The whole configuration of a run, one field per section; `resolve` makes it.

    Example: `resolve({"data.name": "digits", "train.steps": 200}).train.steps` is 200.
    """

    recipe: str = "paper"
    """Named recipe that the defaults come from: `paper`, or `cold-start` for a few labels per class."""
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

    def identity(self) -> dict[str, Any]:
        """The part of the configuration that decides the result."""
        return {name: section for name, section in self.to_dict().items() if name != "runtime"}


def resolve(changes: Changes) -> RunSettings:
    """Return the configuration of a run: the recipe of its data set and method, then the changes; later values win.

    changes: dotted keys and values, or a sequence of `Layer`. Other settings get the value of the recipe, or else the
    default of their field. Raises an `AggMatchError` for an unknown key or a wrong value.

    Example: `resolve({"data.name": "cifar10", "method.name": "fixmatch", "optim.lr": 0.01})`.
    """
    layers = [with_absolute_paths(layer) for layer in as_layers(changes)]
    for layer in layers:
        check_sections(layer)
    chosen, sources = merge(layers)
    data_name = chosen.get("data", {}).get("name", "digits")
    method_name = chosen.get("method", {}).get("name", "aggmatch")
    named = chosen.get("recipe", RunSettings.recipe)
    for key, value in (("data.name", data_name), ("method.name", method_name), ("recipe", named)):
        if not isinstance(value, str):
            raise InvalidValue(key, f"must be a string, got {value!r}", sources.get(key, ""))
    if named not in NAMED:
        raise unknown("recipe", named, NAMED, see="aggmatch list recipes")
    if NAMED[named] and method_name not in NAMED[named]:
        problem = f"must be {RunSettings.recipe} for {method_name}: {named} is for {', '.join(NAMED[named])}"
        raise InvalidValue("recipe", problem, sources.get("recipe", ""))
    usual = recipe(data_name, method_name, named)
    values, sources = merge([*usual, *layers])
    settings = build(values, sources, method_name)
    fixed, (own, _) = dict(chosen.get("train", {})), merge(usual)
    if own.get("train", {}).get("steps") == settings.train.steps:  # the recipe's cadence is made for its length
        fixed |= own["train"]
    return replace(settings, train=often_enough(settings.train, fixed))


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


def recipe(data: str, method: str, named: str = RunSettings.recipe) -> list[Layer]:
    """Return the layers of default settings of a method on a data set: data set, method, both, then a named recipe."""
    return [
        Layer(f"the recipe of {data}", FOLDER if is_folder(data) else DATA.get(data, {})),
        Layer(f"the defaults of {method}", load_method(method).defaults),
        Layer(f"the recipe of {method} on {data}", METHOD.get((data, method), {})),
        Layer(f"the recipe {named}", NAMED[named].get(method, {}) | NAMED_ON.get((named, data, method), {})),
    ]


def with_absolute_paths(layer: Layer) -> Layer:
    """Return the layer with absolute paths of code files, which are valid in every working directory."""
    named = {key: absolute(layer.values[key]) for key in PARTS if isinstance(layer.values.get(key), str)}
    return Layer(layer.source, {**layer.values, **named}) if named else layer


def parts_named(values: Mapping[str, Any]) -> list[str]:
    """Return the names of parts (method, data set, network, views) among nested or dotted values."""
    flat = flatten(values)
    return [flat[key] for key in PARTS if isinstance(flat.get(key), str)]


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


def check_sections(layer: Layer) -> None:
    """Raise `InvalidValue` for a value in place of a section: `method=fixmatch` instead of `method.name=fixmatch`."""
    if "method_name" in layer.values:
        raise InvalidValue("method_name", "does not exist; choose the method with method.name", layer.source)
    for key, section in sections(RunSettings):
        if key in layer.values:
            raise no_section(key, layer.values[key], section, layer.source)


def build(values: Mapping[str, Any], sources: Mapping[str, str], method_name: str) -> RunSettings:
    """Return validated settings from nested values."""
    values = dict(values)
    method_values = {key: value for key, value in dict(values.pop("method", {})).items() if key != "name"}
    method = load_method(method_name).config_type.build(method_values, sources, "method.", method_name)
    return RunSettings.build({**values, "method_name": method_name, "method": method}, sources)
