"""Methods by name: one module or package here per method, a file of your own, or an installed package."""

import pkgutil
from functools import cache
from typing import Any

from aggmatch.methods.base import Batch, Method, Problem, StepResult, Views, forward_together
from aggmatch.registry import Registry

__all__ = ["METHODS", "Batch", "Method", "Problem", "StepResult", "Views", "forward_together", "load_method"]

SHARED = ("alignment", "base")
"""Modules that several methods use."""


@cache
def builtin_methods() -> dict[str, str]:
    """The methods of this package: every module but `SHARED`, each of which announces its class as `METHOD`."""
    names = (module.name for module in pkgutil.iter_modules(__path__) if module.name not in SHARED)
    return {name: f"{__name__}.{name}:METHOD" for name in names}


METHODS: Registry[type[Method[Any]]] = Registry(
    "method",
    "methods",
    builtin=builtin_methods,
    accepts=lambda part: isinstance(part, type) and issubclass(part, Method),
    wanted="a subclass of aggmatch.Method",
)
"""Every method that can be named."""


def load_method(name: str) -> type[Method[Any]]:
    """Return the class of a method by its name, such as `fixmatch` or `my_method.py:Mine`.

    Example: `load_method("fixmatch").reference`.
    """
    return METHODS.load(name)
