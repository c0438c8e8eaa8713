"""One validator for settings and files: it checks values against types.

A type is an annotation: `bool`, `int`, `float` (finite), `str`, a number with a range (`Fraction`,
`Count`), `Literal[...]`, `list[...]`, `tuple[..., ...]`, `dict[str, ...]`, a `TypedDict`, which allows further entries,
`Any`, or several of these with `|`.
"""

import json
import math
import types
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shorten
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from aggmatch.errors import AggMatchError

Value = TypeVar("Value")
LARGEST = 10**18
"""Whole numbers are smaller than this: tensors and files count with 64 bits."""
DEEPEST = 50
"""Levels of nested tables and lists that are read."""
NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}


@dataclass(frozen=True)
class Range:
    """An interval of numbers: both ends included, the lower one excluded if `above` is set."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False

    def __contains__(self, value: float) -> bool:
        return (self.low < value if self.above else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"{'above' if self.above else 'at least'} {self.low:g}"
        return f"in {'(' if self.above else '['}{self.low:g}, {self.high:.10g}]"


Fraction = Annotated[float, Range(0, 1)]
Percent = Annotated[float, Range(0, 100)]
Positive = Annotated[float, Range(0, above=True)]
NonNegative = Annotated[float, Range(0)]
Count = Annotated[int, Range(1)]
Natural = Annotated[int, Range(0)]


class InvalidValue(AggMatchError):  # noqa: N818 - the message says what is wrong
    """A wrong value under one key: `key problem (from source).`

    The key grows by a prefix while the error passes up through nested sections.
    """

    def __init__(self, key: str, problem: str, source: str = "") -> None:
        super().__init__(f"{key} {problem}" + (f" (from {source})." if source else "."))
        self.key, self.problem, self.source = key, problem, source


def check(value: Any, kind: Any, key: str) -> Any:
    """Return `value` as `kind`, or raise `InvalidValue` that names the dotted key of the first wrong part.

    Whole numbers pass as floats and lists as tuples. Nothing else is converted.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is Annotated:
        value = check(value, arguments[0], key)
        if value is not None and value not in arguments[1]:
            raise InvalidValue(key or "it", f"must be {arguments[1]}, got {value!r}")
        return value
    if origin is NotRequired:
        return check(value, arguments[0], key)
    if origin in (Union, types.UnionType):
        return check_alternatives(value, arguments, key)
    if origin is Literal:
        if value not in arguments:
            raise InvalidValue(key or "it", f"must be one of {', '.join(map(str, arguments))}, got {value!r}")
        return value
    if is_typeddict(kind) or origin is dict:
        return check_table(value, kind, key)
    if origin in (list, tuple):
        if not isinstance(value, (tuple, list)):
            raise InvalidValue(key or "it", f"must be a list, got {shorten(value)}")
        numbered = origin is list  # of a file, where it helps to find the item
        return origin(
            check(item, arguments[0], f"{key}[{number}]" if numbered else key) for number, item in enumerate(value)
        )
    return check_plain(value, kind, key or "it")


def check_alternatives(value: Any, kinds: tuple[Any, ...], key: str) -> Any:
    """Return the value as the first kind that it fits; if it fits none, raise the error of the first kind."""
    if value is None and type(None) in kinds:
        return None
    errors = []
    for kind in sorted(kinds, key=lambda kind: kind is type(None)):  # "must be None" is the least helpful error
        try:
            return check(value, kind, key)
        except InvalidValue as error:
            errors.append(error)
    raise errors[0]


def check_table(value: Any, kind: Any, key: str) -> dict[str, Any]:
    """Return a dictionary whose entries fit a `TypedDict` or a `dict[str, ...]`; unknown entries of the former stay."""
    if not isinstance(value, dict):
        raise InvalidValue(key or "it", f"must be a table, got {shorten(value)}")
    if missing := [name for name in getattr(kind, "__required_keys__", ()) if name not in value]:
        raise InvalidValue(key or "it", f"lacks {', '.join(sorted(missing))}")
    for name in () if is_typeddict(kind) else value:
        check(name, str, f"a name in {key}" if key else "a name in it")
    known = get_type_hints(kind, include_extras=True) if is_typeddict(kind) else dict.fromkeys(value, get_args(kind)[1])
    checked = {
        name: check(value[name], known[name], f"{key}.{name}" if key else name) for name in known if name in value
    }
    return {**value, **checked}


def check_plain(value: Any, kind: Any, key: str) -> Any:
    """Return a value of a plain type such as `int`; True is not a whole number here, and NaN is not a number."""
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise InvalidValue(key, "must be a number of at most 18 digits")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if kind is float and isinstance(value, float) and not math.isfinite(value):
        raise InvalidValue(key, f"must be a finite number, got {value!r}")
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InvalidValue(key, f"must be {NAMES.get(kind, kind.__name__)}, got {shorten(value)}")
    if kind is str and not is_text(value):
        raise InvalidValue(key, f"must be text that a file can hold, got {value!a}")
    return value


def is_text(value: str) -> bool:
    """Whether a string can be written to a file and be a path: it is valid Unicode without null characters."""
    try:
        value.encode()
    except UnicodeEncodeError:  # from a name of bytes that are not UTF-8
        return False
    return "\0" not in value


# Files -----------------------------------------------------------------------------------------------------------


def require(value: Value, kind: Any, where: object) -> Value:
    """Return the value unchanged if it has the type; `where` it was read (a file, a line) starts the error message."""
    try:
        check(value, kind, "")
    except InvalidValue as error:
        raise AggMatchError(f"Cannot read {where}: {error}") from None
    return value


def parse_json(text: str | bytes, kind: Any, where: object) -> Any:
    """Parse JSON that must have a type; errors start with `where` it was read."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AggMatchError(f"Cannot read {where}: it is not JSON ({error}).") from None
    return require(refuse_deep(value, where), kind, where)


def refuse_deep(value: Value, where: object) -> Value:
    """Return the value; raise an `AggMatchError` if its tables and lists are nested too deeply for any use."""
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        parts = [part for part in level if isinstance(part, (dict, list))]
        level = [item for part in parts for item in (part.values() if isinstance(part, dict) else part)]
        if not level:
            return value
    raise AggMatchError(f"Cannot read {where}: it is nested more than {DEEPEST} levels deep.")


def read_json(path: Path, kind: Any, hint: str = "") -> Any:
    """Read a JSON file that must have a type; `hint` follows the message if the file cannot be opened."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise AggMatchError(f"Cannot read {path}: {error.strerror}.{' ' if hint else ''}{hint}") from None
    except ValueError as error:  # a null character in the path
        raise AggMatchError(f"Cannot read {str(path)!a}: {error}.") from None
    return parse_json(data, kind, path)
