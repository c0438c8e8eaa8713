"""Configuration as frozen dataclasses: validated when created, merged from layers, set by dotted keys.

A section of the configuration is a dataclass that derives from `Settings`, in the module that it configures. The type
of a field states its allowed range (`Fraction`, `Count`, ...), and the docstring below the field its meaning.
"""

import ast
import inspect
import textwrap
import tomllib
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

from aggmatch.errors import AggMatchError, unknown
from aggmatch.storage.files import SEAL
from aggmatch.validate import (
    Count,
    Fraction,
    InvalidValue,
    Natural,
    NonNegative,
    Positive,
    Range,
    check,
    read_json,
    refuse_deep,
)

__all__ = [
    "Changes",
    "Count",
    "Fraction",
    "Layer",
    "Natural",
    "NonNegative",
    "Positive",
    "Range",
    "Setting",
    "Settings",
    "as_layers",
    "describe",
    "differences",
    "flatten",
    "merge",
    "no_section",
    "parse_value",
    "read_assignment",
    "read_file",
    "sections",
]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base class of every section: a frozen dataclass whose fields are validated when it is created.

    A wrong value raises `InvalidValue`. The docstring below a field is its description in `aggmatch list settings`.

    Example: `@dataclass(frozen=True, kw_only=True)`, then `class Config(Settings): threshold: Fraction = 0.95`.
    """

    derived: ClassVar[tuple[str, ...]] = ()
    """Fields that no key sets; messages about unknown keys do not offer them."""

    def __post_init__(self) -> None:
        for name, kind in field_types(type(self)).items():
            object.__setattr__(self, name, check(from_words(getattr(self, name), kind), kind, name))

    @classmethod
    def build(
        cls, values: Mapping[str, Any], sources: Mapping[str, str] | None = None, prefix: str = "", owner: str = ""
    ) -> Self:
        """Return the section with the given values; other fields have their defaults.

        values: nested values. sources: dotted key → where its value comes from, for error messages. prefix: what comes
        before the names of the fields in dotted keys, such as "method.". owner: the method whose settings these are.
        """
        kinds, sources = field_types(cls), sources or {}
        arguments = {}
        for name, value in values.items():
            key = prefix + name
            if name not in kinds:
                known = [prefix + other for other in kinds if other not in cls.derived]
                raise unknown("setting", key, known, "aggmatch list settings", owner)
            kind = kinds[name]
            if is_section(kind) and not isinstance(value, Settings):
                if not isinstance(value, Mapping):
                    raise no_section(key, value, kind, sources.get(key, ""))
                arguments[name] = kind.build(value, sources, key + ".")
            else:
                arguments[name] = value
        try:
            return cls(**arguments)
        except InvalidValue as error:
            key = prefix + error.key
            raise InvalidValue(key, error.problem, sources.get(key, "")) from None

    def to_dict(self) -> dict[str, Any]:
        """Return nested plain values that JSON can hold."""
        return {name: plain(getattr(self, name)) for name in field_types(type(self))}


def plain(value: Any) -> Any:
    """A value in the form that JSON can hold."""
    if isinstance(value, Settings):
        return value.to_dict()
    return list(value) if isinstance(value, tuple) else value


def is_section(kind: Any) -> bool:
    """Whether the type of a field is a section."""
    return isinstance(kind, type) and issubclass(kind, Settings)


def no_section(key: str, value: Any, section: type[Settings], source: str) -> InvalidValue:
    """Return the error for a value in the place of a section, with a setting of that section as an example."""
    first = next(iter(field_types(section)), "name")  # section `method` has no fields of its own
    problem = f"is a section and takes no value, got {value!r}; set one of its settings, such as {key}.{first}"
    return InvalidValue(key, problem, source)


def sections(section: type[Settings], prefix: str = "") -> Iterator[tuple[str, type[Settings]]]:
    """Yield dotted key and type of every section below `section`."""
    for name, kind in field_types(section).items():
        if is_section(kind):
            yield prefix + name, kind
            yield from sections(kind, f"{prefix}{name}.")


def field_types(section: type[Settings]) -> dict[str, Any]:
    """Field name → type, with its `Annotated` range."""
    hints = get_type_hints(section, include_extras=True)
    return {field.name: hints[field.name] for field in fields(section)}


def from_words(value: Any, kind: Any) -> Any:
    """Read `none` and `null` as None or as the choice "none", whichever the setting has: TOML has no null."""
    choices = get_args(kind) if get_origin(kind) in (Union, types.UnionType, Literal) else ()
    if value is None and "none" in choices:
        return "none"
    if value in ("none", "null") and type(None) in choices and str not in choices:
        return None
    return value


# Layers of values; later ones win ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """Settings from one source.

    Example: `resolve([Layer("a.toml", {"train": {"steps": 9}}), Layer("--set optim.lr=0.1", {"optim.lr": 0.1})])`.
    """

    source: str
    """Where the values come from, for error messages."""
    values: Mapping[str, Any]
    """Dotted key → value; nested values are flattened."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", flatten(self.values))


Changes = Sequence[Layer] | Mapping[str, Any]
"""Layers, later ones winning, or one mapping of dotted keys to values."""


def as_layers(changes: Changes) -> list[Layer]:
    """Return changes as layers."""
    return [Layer("", changes)] if isinstance(changes, Mapping) else list(changes)


def merge(layers: Sequence[Layer]) -> tuple[dict[str, Any], dict[str, str]]:
    """Merge layers; return the nested values, and dotted key → source of its value."""
    nested: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for layer in layers:
        for key, value in layer.values.items():
            *sections, name = key.split(".")
            place = nested
            for section in sections:
                place = place.setdefault(section, {})
                if not isinstance(place, dict):
                    raise InvalidValue(key, f"cannot be set: '{section}' is not a section", layer.source)
            place[name] = value
            sources[key] = layer.source
    return nested, sources


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values → dotted keys."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def read_file(path: Path) -> Layer:
    """Read settings from a TOML or JSON file, or from the `config.json` of a run folder."""
    if path.is_dir():
        path = path / "config.json"
    try:
        if path.suffix == ".json":
            values = read_json(path, dict[str, Any])
            return Layer(str(path), {name: value for name, value in values.items() if name != SEAL})
        return Layer(str(path), refuse_deep(tomllib.loads(path.read_text(encoding="utf-8")), path))
    except OSError as error:
        raise AggMatchError(f"Cannot read {path}: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise AggMatchError(f"Cannot read {path}: {error}.") from None


def read_assignment(text: str) -> Layer:
    """Read `optim.lr=0.1` as given to `--set`. The value is TOML (0.1, true, [1, 2]) or else a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise AggMatchError(f"--set takes key=value, got '{text}'. For example: --set optim.lr=0.1")
    return Layer(f"--set {text}", {key.strip(): parse_value(value.strip())})


def parse_value(text: str) -> Any:
    """Read a value from the command line: TOML, `none`, or else a string."""
    if text.lower() in ("none", "null"):
        return None
    try:
        return refuse_deep(tomllib.loads(f"value = {text}")["value"], "a value of --set")
    except (ValueError, RecursionError):
        return text


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted keys whose values differ → (before, after); a missing key counts as None."""
    before, after = flatten(before), flatten(after)
    keys = list(before) + [key for key in after if key not in before]
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


# Documentation of settings, read from the source -----------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """One documented setting."""

    key: str
    default: Any
    text: str


def describe(section: type[Settings], prefix: str = "") -> Iterator[Setting]:
    """Yield every setting below `section` with its default and the docstring below its field."""
    texts = field_docstrings(section)
    kinds = field_types(section)
    for field in fields(section):
        if is_section(kinds[field.name]):
            yield from describe(kinds[field.name], f"{prefix}{field.name}.")
            continue
        default = None if field.default is MISSING else plain(field.default)
        yield Setting(prefix + field.name, default, texts.get(field.name, ""))


def field_docstrings(section: type[Settings]) -> dict[str, str]:
    """Field name → the docstring below it, also from base classes."""
    texts: dict[str, str] = {}
    for cls in reversed(section.__mro__):
        if not issubclass(cls, Settings):
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(definition, ast.ClassDef)
        for statement, follower in zip(definition.body, definition.body[1:], strict=False):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(follower, ast.Expr)
                and isinstance(follower.value, ast.Constant)
                and isinstance(follower.value.value, str)
            ):
                texts[statement.target.id] = inspect.cleandoc(follower.value.value)
    return texts
