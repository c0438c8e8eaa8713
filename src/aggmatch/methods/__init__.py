"""Methods by name: built-in (one module or package here each), from a file, or from an installed package."""

import pkgutil
from functools import cache
from typing import Any

from aggmatch.methods.base import Batch, Method, Problem, StepResult, Views, forward_together
from aggmatch.registry import Registry

__all__ = ["METHODS", "Batch", "Method", "Problem", "StepResult", "Views", "forward_together", "load_method"]


@cache
def builtin_methods() -> dict[str, str]:
    """Return name → `module:METHOD` for each module here but `base`."""
    names = (module.name for module in pkgutil.iter_modules(__path__) if module.name != "base")
    return {name: f"{__name__}.{name}:METHOD" for name in names}


METHODS: Registry[type[Method[Any]]] = Registry(
    "method",
    "methods",
    builtin=builtin_methods,
    accepts=lambda part: isinstance(part, type) and issubclass(part, Method),
    wanted="a subclass of aggmatch.Method",
)
"""All methods that have a name."""


def load_method(name: str) -> type[Method[Any]]:
    """Return the class of a method.

    name: `fixmatch`, or another of `aggmatch list methods`; `path/to/file.py:Name`; or `module:Name`.

    Example: `load_method("fixmatch").reference`.
    """
    return METHODS.load(name)
