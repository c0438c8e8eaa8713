"""From the name of a network to the network."""

from dataclasses import dataclass

from torch import nn

from aggmatch.config import Settings
from aggmatch.errors import AggMatchError
from aggmatch.models.network import Network
from aggmatch.registry import Registry, is_code
from aggmatch.validate import InvalidValue

FAMILIES = {
    "small": "small or small-WIDTH",
    "wrn": "wrn-DEPTH-WIDTH with a depth of 10, 16, 22, 28, ..., or 37 for images of 96 pixels",
}
"""Built-in families of networks, whose names contain numbers, and the form of these names."""

LARGEST = 1000
"""Largest depth or width: a network with a million layers is never built to its end."""

MODELS: Registry[type[nn.Module]] = Registry(
    "network",
    "models",
    builtin=lambda: {"small": "aggmatch.models.small:SmallNet", "wrn": "aggmatch.models.wide_resnet:WideResNet"},
    accepts=callable,
    wanted="a class or function that takes (channels, classes) and returns a torch.nn.Module",
)
"""All backbones that have a name."""


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """Section `model`."""

    name: str = "wrn-28-2"
    """Network: `wrn-DEPTH-WIDTH` (wide residual network), `small-WIDTH` (six convolutions, for tiny images), one of an
    installed package, or your own as `path/to/file.py:Name`."""


def build_network(name: str, *, channels: int, classes: int) -> Network:
    """Return a network with new random weights, drawn from torch's global generator.

    name: see `ModelSettings.name`. channels: of the images, 1 or 3. classes: Y, number of logits.

    Example: `build_network("wrn-28-2", channels=3, classes=10).features` is 128.
    """
    family, *numbers = name.split("-")
    if family in FAMILIES and not is_code(name) and name not in MODELS.announced():
        if any(number.isdecimal() and int(number[:9]) > LARGEST for number in numbers):
            raise InvalidValue("model.name", f"must have numbers of at most {LARGEST}, got '{name}'")
        try:
            backbone = MODELS.load(family).from_numbers(channels, *map(int, numbers))  # type: ignore[attr-defined]
        except (ValueError, TypeError):
            raise InvalidValue("model.name", f"must be {FAMILIES[family]}, got '{name}'") from None
        return Network(backbone, classes, channels)
    build = MODELS.load(name)
    try:
        backbone = build(channels, classes)
    except (Exception, SystemExit) as error:  # whatever the class raises
        raise AggMatchError(f"Cannot build network '{name}': {error}. It must be {MODELS.wanted}.") from error
    if not isinstance(backbone, nn.Module):
        raise AggMatchError(f"Cannot use network '{name}': it returned {backbone!r:.80}. It must be {MODELS.wanted}.")
    return Network(backbone, classes, channels)
