"""Exports a trained model to ONNX and compares it with the original."""

import json
import logging
import os
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from aggmatch.errors import AggMatchError
from aggmatch.inference.model import TrainedModel
from aggmatch.storage.files import SEAL, digest, read_bytes

if TYPE_CHECKING:
    import onnx

TOLERANCE = 1e-4
"""Largest difference of a probability that a different order of sums may cause."""


class Classifier(nn.Module):
    """The network and the method's rule of prediction as one module, from images to class probabilities."""

    def __init__(self, model: TrainedModel) -> None:
        super().__init__()
        self.method, self.network = model.method, model.network
        self.frozen = model.network.frozen  # makes it a part of this module, which the export needs

    def forward(self, images: Tensor) -> Tensor:
        """uint8 images (N, C, side, side) → class probabilities (N, Y)."""
        return self.method.predict(self.network, images)


def to_onnx(model: TrainedModel) -> bytes:
    """Return the model as the bytes of an ONNX file.

    Its input `images` is uint8 (N, C, side, side) with any N, its output `probabilities` is (N, Y). Its metadata hold
    the class names as JSON under `classes`, and a digest by which `read_onnx` detects damage. Raises an `AggMatchError`
    if it predicts differently from the original.

    Example: `Path("model.onnx").write_bytes(to_onnx(TrainedModel.load("runs/mine")))`.
    """
    try:
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # which writes into the home folder
        import onnxruntime  # type: ignore[import-untyped]
        import onnxscript  # noqa: F401 - torch needs it for the export
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
            f"Try other versions of torch and onnxruntime."
        )
    return bytes(content) + seal(content)


def seal(content: bytes) -> bytes:
    """The end of an ONNX file: one more entry of its metadata, with a digest of everything before it.

    It is encoded here and not by the package onnx, so that reading a file needs no package.
    """
    key, value = SEAL.encode(), digest(content).encode()
    entry = b"\x0a" + bytes([len(key)]) + key + b"\x12" + bytes([len(value)]) + value
    return b"\x72" + bytes([len(entry)]) + entry  # field 14 of a model: metadata_props


def read_onnx(path: str | Path) -> bytes:
    """Return the bytes of a file that `aggmatch export` wrote; raise an `AggMatchError` if it was damaged since.

    path: the file.

    Example: `onnxruntime.InferenceSession(read_onnx("model.onnx"))`.
    """
    data = read_bytes(Path(path))
    end = len(data) - len(seal(b""))
    if end < 0 or data[end:] != seal(data[:end]):
        raise AggMatchError(f"{path} is corrupt, or not a file of `aggmatch export`. Export the model again.")
    return data


def convert(classifier: Classifier, images: Tensor, classes: tuple[str, ...]) -> "onnx.ModelProto":
    """Return the ONNX graph of a classifier, traced with some images."""
    logger = logging.getLogger("torch.onnx")
    with ExitStack() as restored, warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # about the exporter's own parts
        restored.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)  # it complains about torchvision, which is not needed
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
