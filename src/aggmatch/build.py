"""The only place that builds a network and a method from settings."""

from typing import Any

from aggmatch.methods import Method, Problem, load_method
from aggmatch.models import Network, build_network
from aggmatch.settings import RunSettings


def build_modules(
    settings: RunSettings, *, channels: int, classes: int, labels: int, images: int, mixed: bool = False
) -> tuple[Method[Any], Network]:
    """Return a run's method and its network with new random weights, drawn from torch's global generator.

    channels: C of the images. classes: Y. labels: number of labelled images. images: number of training images, the
    labelled ones included. mixed: whether the network computes in bfloat16.

    Example: `build_modules(resolve({}), channels=1, classes=10, labels=40, images=1437)`.
    """
    network = build_network(settings.model.name, channels=channels, classes=classes)
    network.mixed = mixed
    problem = Problem(classes=classes, features=network.features, labels=labels, images=images, mixed=mixed)
    method = load_method(settings.method_name)(settings.method, problem)
    network.head = method.build_head()
    return method, network
