"""The whole configuration of a run, and how it is put together from recipe, file and command line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from aggmatch.augment import ViewSettings
from aggmatch.config import (
    Changes,
    ConfigError,
    Count,
    Fraction,
    Layer,
    Natural,
    Range,
    Settings,
    as_layers,
    merge,
    no_section,
    sections,
)
from aggmatch.data import DataSettings, drawn_settings
from aggmatch.methods import load_method
from aggmatch.models import ModelSettings
from aggmatch.recipes import recipe
from aggmatch.training.optim import OptimSettings


@dataclass(frozen=True, kw_only=True)
class TrainSettings(Settings):
    """Section `train`: length, batches and cadence."""

    steps: Annotated[int, Range(1, 2**24)] = 2**20  # as far as a float32 counts exactly
    """K: number of steps; the learning-rate schedule spans them."""
    batch: Count = 64
    """B: labelled images of a step."""
    unlabeled_ratio: Count = 7
    """µ: unlabelled images of a step for each labelled one."""
    seed: Natural = 0
    """Seed of weights, order and views; together with the fold."""
    evaluated: Literal["average", "online"] = "average"
    """Network whose accuracy is the headline and which is saved as the model."""
    log_every: Count = 100
    """Steps between two lines of metrics."""
    evaluate_every: Count = 5000
    """Steps between two evaluations on the test set."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Arithmetic of the network: bfloat16 autocast on CUDA and float32 on a CPU where `auto`."""


@dataclass(frozen=True, kw_only=True)
class RuntimeSettings(Settings):
    """Section `runtime`: where and how it runs. Nothing here changes results, so a resume may change it."""

    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, or the best there is."""
    data_dir: str = "data"
    """Folder of the downloaded data sets."""
    checkpoint_every: Count = 5000
    """Steps between two checkpoints."""
    snapshots: tuple[Fraction, ...] = (0.1, 0.5, 1.0)
    """Shares of the steps after which networks and queue are kept for later analysis; none to save the space."""
    graph: bool = True
    """Whether the whole step runs as one CUDA graph on CUDA."""
    tensorboard: bool = False
    """Whether metrics are written for TensorBoard too (extra `track`)."""


@dataclass(frozen=True, kw_only=True)
class RunSettings(Settings):
    """Everything that makes a run."""

    method_name: str
    method: Settings
    data: DataSettings = field(default_factory=DataSettings)
    views: ViewSettings = field(default_factory=ViewSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    optim: OptimSettings = field(default_factory=OptimSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values; the method's name stands in its section."""
        values = super().to_dict()
        return values | {"method": {"name": values.pop("method_name"), **values["method"]}}

    def layer(self, source: str) -> Layer:
        """All of it as a layer that wins over others."""
        return Layer(source, self.to_dict())

    def identity(self) -> dict[str, Any]:
        """The part of the configuration that decides the result."""
        return {name: section for name, section in self.to_dict().items() if name != "runtime"}


def resolve(changes: Changes) -> RunSettings:
    """Put a run's configuration together: recipe of data set and method, then the changes, later ones winning."""
    layers = as_layers(changes)
    for layer in layers:
        check_sections(layer)
    chosen, sources = merge(layers)
    data_name = chosen.get("data", {}).get("name", "digits")
    method_name = chosen.get("method", {}).get("name", "aggmatch")
    for key, value in (("data.name", data_name), ("method.name", method_name)):
        if not isinstance(value, str):
            raise ConfigError(key, f"must be a string, got {value!r}", sources.get(key, ""))
    values, sources = merge([*recipe(data_name, method_name), *layers])
    return build(values, sources, method_name)


def with_split(layers: Sequence[Layer]) -> list[Layer]:
    """Layers of a new run and, where they name a split to reuse, one more with its labels and its fold.

    What was chosen otherwise is refused: it would not be what the run learns from.
    """
    chosen = {key: (value, layer.source) for layer in layers for key, value in layer.values.items()}
    split, _ = chosen.get("data.split", (None, ""))
    if not isinstance(split, str):
        return list(layers)
    drawn = drawn_settings(Path(split))
    for key, own in drawn.items():
        value, source = chosen.get(key, (None, ""))
        if value not in (None, own):
            raise ConfigError(key, f"must be left out or {own}, as in the split {split}, got {value!r}", source)
    return [*layers, Layer(f"the split {split}", drawn)]


def check_sections(layer: Layer) -> None:
    """Refuse a value in the place of a section: `method=fixmatch`, where `method.name` is meant."""
    if "method_name" in layer.values:
        raise ConfigError("method_name", "does not exist; the method is chosen by method.name", layer.source)
    for key, section in sections(RunSettings):
        if key in layer.values:
            raise no_section(key, layer.values[key], section, layer.source)


def build(values: Mapping[str, Any], sources: Mapping[str, str], method_name: str) -> RunSettings:
    """Settings from nested values, checked."""
    values = dict(values)
    method_values = {key: value for key, value in dict(values.pop("method", {})).items() if key != "name"}
    method = load_method(method_name).config_type.build(method_values, sources, "method.", method_name)
    return RunSettings.build({**values, "method_name": method_name, "method": method}, sources)
