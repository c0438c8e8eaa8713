"""A trained model as ONNX, checked against the original before it is handed out."""

import json
import logging
import os
import warnings
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from aggmatch.errors import AggMatchError
from aggmatch.inference.model import TrainedModel

if TYPE_CHECKING:
    import onnx

TOLERANCE = 1e-4
"""Largest difference of a probability that may come from the order of sums."""


class Classifier(nn.Module):
    """Images to class probabilities: the network and the method's way to predict with it, as one module."""

    def __init__(self, model: TrainedModel) -> None:
        super().__init__()
        self.method, self.network = model.method, model.network

    def forward(self, images: Tensor) -> Tensor:
        """uint8 (N, C, side, side) → (N, Y)."""
        return self.method.predict(self.network, images)


def to_onnx(model: TrainedModel) -> bytes:
    """The model as an ONNX file: `images`, uint8 and any number of them, to `probabilities`.

    The names of the classes are in its metadata, as JSON under `classes`.
    """
    try:
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # it would write into the home folder
        import onnxruntime  # type: ignore[import-untyped]
        import onnxscript  # noqa: F401 - what torch exports with
    except ImportError as error:
        raise AggMatchError(f"Exporting needs {error.name}: pip install 'aggmatch[export]'.") from None
    classifier = Classifier(model).eval()
    images = torch.randint(0, 256, (3, model.network.channels, model.side, model.side), dtype=torch.uint8)
    content = convert(classifier, images, model.classes).SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"images": images.numpy()})
    difference = float(np.abs(found - classifier(images).detach().numpy()).max())
    if not difference < TOLERANCE:
        raise AggMatchError(
            f"The exported model predicts differently from the original: a probability differs by {difference:.2g}. "
            f"Nothing is written; other versions of torch and onnxruntime may do better."
        )
    return bytes(content)


def convert(classifier: Classifier, images: Tensor, classes: tuple[str, ...]) -> "onnx.ModelProto":
    """The ONNX graph of a classifier, traced with some images."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it tells of torchvision, which nothing here needs
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of the exporter's own parts
        program = torch.onnx.export(
            classifier,
            (images,),
            input_names=["images"],
            output_names=["probabilities"],
            dynamic_shapes={"images": {0: torch.export.Dim("number")}},
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    model: onnx.ModelProto = program.model_proto
    entry = model.metadata_props.add()
    entry.key, entry.value = "classes", json.dumps(list(classes), ensure_ascii=False)
    return model
