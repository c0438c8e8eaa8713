"""Backbones of timm (pytorch-image-models), if it is installed."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from torch import Tensor, nn

from aggmatch.errors import AggMatchError
from aggmatch.models.pretrained import first_line

TIMM = "timm:"
"""Names that start with this are networks of timm, if it is installed."""
ANY_SIDE: tuple[dict[str, bool], ...] = (
    {"dynamic_img_size": True, "dynamic_img_pad": True},
    {"strict_img_size": False},
)
"""Options of timm by which transformers, which are built for one size, take images of any side."""


def timm_builder(name: str) -> Callable[[int, int], nn.Module]:
    """Return a function (channels, classes) → backbone of timm, without weights."""
    try:
        import timm  # type: ignore[import-not-found,import-untyped,unused-ignore]

        create = timm.create_model
    except (Exception, SystemExit) as error:  # a torchvision that does not fit torch raises RuntimeError
        problem = f"Cannot import timm for model.name={TIMM}{name}: {error}."
        raise AggMatchError(
            f"{problem} Install it with: pip install timm. It needs a torchvision of the same age as torch."
        ) from error

    def build(channels: int, classes: int) -> nn.Module:
        shape = {"num_classes": 0, "in_chans": channels}
        backbone: nn.Module = create(name, **shape)
        config: Mapping[str, Any] = backbone.pretrained_cfg  # type: ignore[assignment]
        for any_side in ANY_SIDE if config.get("fixed_input_size") else ():
            with suppress(TypeError):  # networks have one of these options, or none
                backbone = create(name, **shape, **any_side)
        heads = config.get("classifier") or ()
        heads = tuple(f"{head}." for head in ([heads] if isinstance(heads, str) else heads))

        def installed_weights() -> Mapping[str, Tensor]:
            """The weights in timm's cache, which it downloads if they are missing."""
            try:
                state: Mapping[str, Tensor] = create(name, True, num_classes=0, in_chans=channels).state_dict()
            except Exception as error:  # no connection, no package of the hub, no weights of this network
                problem = f"timm cannot load the weights of {name}: {first_line(error).rstrip('.')}."
                raise AggMatchError(
                    f"{problem} Name a file of them with model.weights, or train from scratch: train.backbone=scratch"
                ) from error
            return state

        def adapted(state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
            """The weights without those of the classifier, which files of timm hold too."""
            return {key: tensor for key, tensor in state.items() if not key.startswith(heads)}

        for fact, value in {
            "pixel_mean": config["mean"],
            "pixel_deviation": config["std"],
            "side": config["input_size"][-1],
            "features": getattr(backbone, "head_hidden_size", None) or backbone.num_features,
            "installed_weights": installed_weights,
            "adapted": adapted,
        }.items():
            setattr(backbone, fact, value)
        return backbone

    return build
