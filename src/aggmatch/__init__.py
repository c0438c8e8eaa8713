"""Image classification with very few labels.

The names in `__all__` are the public interface. They are imported on first use, so `import aggmatch` is fast.

Example: `run = aggmatch.start(aggmatch.resolve({"data.name": "digits"}), "runs/mine")`, then
`for record in run.train(): ...` and `aggmatch.TrainedModel.load("runs/mine").predict(images)`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aggmatch.classifier import AggMatchClassifier
    from aggmatch.config import Layer, Settings
    from aggmatch.data import DataSet, Images, Split, draw_split, load
    from aggmatch.errors import AggMatchError
    from aggmatch.evaluation import Evaluation, evaluate
    from aggmatch.functional import Aggregate, PseudoLabels
    from aggmatch.inference.model import TrainedModel
    from aggmatch.methods import Batch, Method, Problem, StepResult, Views, load_method
    from aggmatch.methods.aggmatch.aggregation import Memory, aggregate
    from aggmatch.methods.aggmatch.queue import ClassBalancedQueue
    from aggmatch.models import Network, Output, build_network
    from aggmatch.notebook import Report, show_report, watch
    from aggmatch.settings import RunSettings, resolve
    from aggmatch.training.begin import resume, start
    from aggmatch.training.run import Run, Stopped

__version__ = "0.1.0"

_MODULES = {
    "aggmatch.classifier": ("AggMatchClassifier",),
    "aggmatch.methods.aggmatch.aggregation": ("Memory", "aggregate"),
    "aggmatch.config": ("Layer", "Settings"),
    "aggmatch.data": ("DataSet", "Images", "Split", "draw_split", "load"),
    "aggmatch.errors": ("AggMatchError",),
    "aggmatch.evaluation": ("Evaluation", "evaluate"),
    "aggmatch.functional": ("Aggregate", "PseudoLabels"),
    "aggmatch.inference.model": ("TrainedModel",),
    "aggmatch.methods": ("Batch", "Method", "Problem", "StepResult", "Views", "load_method"),
    "aggmatch.models": ("Network", "Output", "build_network"),
    "aggmatch.methods.aggmatch.queue": ("ClassBalancedQueue",),
    "aggmatch.notebook": ("Report", "show_report", "watch"),
    "aggmatch.training.run": ("Run", "Stopped"),
    "aggmatch.training.begin": ("resume", "start"),
    "aggmatch.settings": ("RunSettings", "resolve"),
}

__all__ = [
    "AggMatchClassifier",
    "AggMatchError",
    "Aggregate",
    "Batch",
    "ClassBalancedQueue",
    "DataSet",
    "Evaluation",
    "Images",
    "Layer",
    "Memory",
    "Method",
    "Network",
    "Output",
    "Problem",
    "PseudoLabels",
    "Report",
    "Run",
    "RunSettings",
    "Settings",
    "Split",
    "StepResult",
    "Stopped",
    "TrainedModel",
    "Views",
    "aggregate",
    "build_network",
    "draw_split",
    "evaluate",
    "load",
    "load_method",
    "resolve",
    "resume",
    "show_report",
    "start",
    "watch",
]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'aggmatch' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
