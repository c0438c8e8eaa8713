"""Methods by name: the name of a module here, or `module:Class` for one from elsewhere."""

import importlib
import pkgutil
import sys
from pathlib import Path
from typing import Any

from aggmatch.errors import AggMatchError, unknown
from aggmatch.methods.base import Batch, Method, Problem, StepResult, Views, forward_together

__all__ = ["Batch", "Method", "Problem", "StepResult", "Views", "forward_together", "known_methods", "load_method"]


def known_methods() -> list[str]:
    """Names of the methods that come with the package."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "base")


def load_method(name: str) -> type[Method[Any]]:
    """The class of a method by its name."""
    if ":" in name:
        return _load_foreign(name)
    if name not in known_methods():
        raise unknown("method", name, known_methods(), see="aggmatch list methods")
    module = importlib.import_module(f"{__name__}.{name}")
    (method,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Method) and value.__module__.startswith(module.__name__)
    )
    return method


def _load_foreign(name: str) -> type[Method[Any]]:
    module_name, _, class_name = name.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # an installed command does not look into the working directory by itself
    try:
        method = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise AggMatchError(
            f"Cannot load method '{name}': {error}. It is written as module:Class, and the module must lie in the "
            f"working directory or on PYTHONPATH."
        ) from error
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise AggMatchError(f"Cannot load method '{name}': {class_name} is not a subclass of aggmatch.Method.")
    return method
