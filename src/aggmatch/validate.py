"""The shape of what files hold, checked where they are read: a damaged one ends in a sentence that names it.

A shape is a type: one that a setting can have (`bool`, `str`, `Natural`, `float` for finite numbers, ...), `list[...]`,
`dict[str, ...]`, a `TypedDict`, which allows further entries, or several of these with `|`.
"""

import types
from collections.abc import Iterator
from reprlib import repr as shorten
from typing import Annotated, Any, NotRequired, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from aggmatch.config import ConfigError, Range, checked
from aggmatch.errors import AggMatchError

Percent = Annotated[float, Range(0, 100)]
Value = TypeVar("Value")


def require(value: Value, shape: Any, where: object) -> Value:
    """The value, as it is, if it has the shape; `where` it was read (a file, a line of it) begins the error."""
    try:
        compare(value, shape, "")
    except ConfigError as error:
        raise AggMatchError(f"Cannot read {where}: {error}") from None
    return value


def compare(value: Any, shape: Any, key: str) -> None:
    """Raise a `ConfigError` that names the dotted key of the first part that has another shape."""
    origin, arguments = get_origin(shape), get_args(shape)
    if origin is NotRequired:
        compare(value, arguments[0], key)
    elif origin in (Union, types.UnionType):
        compare_any(value, arguments, key)
    elif is_typeddict(shape) or origin is dict:
        if not isinstance(value, dict):
            raise ConfigError(key or "it", f"must be a table, got {shorten(value)}")
        if missing := [name for name in getattr(shape, "__required_keys__", ()) if name not in value]:
            raise ConfigError(key or "it", f"lacks {', '.join(sorted(missing))}")
        for name, kind in entries(value, shape):
            compare(value[name], kind, f"{key}.{name}" if key else name)
    elif origin is list:
        if not isinstance(value, list):
            raise ConfigError(key or "it", f"must be a list, got {shorten(value)}")
        for number, item in enumerate(value):
            compare(item, arguments[0], f"{key}[{number}]")
    elif shape is not Any:
        checked(value, shape, key or "it")


def compare_any(value: Any, shapes: tuple[Any, ...], key: str) -> None:
    """Raise what is wrong by the first of the shapes if the value has none of them."""
    errors = []
    for shape in shapes:
        try:
            return compare(value, shape, key)
        except ConfigError as error:
            errors.append(error)
    raise errors[0]


def entries(value: dict[str, Any], shape: Any) -> Iterator[tuple[str, Any]]:
    """Names and shapes of those entries of a table of which the shape says something."""
    if is_typeddict(shape):
        kinds = get_type_hints(shape, include_extras=True)
        yield from ((name, kinds[name]) for name in kinds if name in value)
    else:
        yield from ((name, get_args(shape)[1]) for name in value)
