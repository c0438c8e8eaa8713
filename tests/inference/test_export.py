"""Export of models that predict in different ways, and what is said where it cannot be done."""

import sys

import pytest
import torch
from torch import Tensor

from aggmatch.errors import AggMatchError
from aggmatch.inference.export import Classifier, to_onnx
from aggmatch.inference.model import TrainedModel
from aggmatch.settings import resolve
from aggmatch.training.run import start

onnxruntime = pytest.importorskip("onnxruntime")

QUICK = {
    "data.name": "digits",
    "model.name": "small-4",
    "train.steps": 3,
    "train.batch": 10,
    "train.unlabeled_ratio": 2,
}


def trained(method: str, folder) -> TrainedModel:
    for _ in start(resolve(QUICK | {"method.name": method}), folder).train():
        pass
    return TrainedModel.load(folder)


@pytest.mark.parametrize("method", ["featmatch", "paws"])  # which predict in ways of their own
def test_any_number_of_images_gets_the_probabilities_of_the_original(method, tmp_path):
    model = trained(method, tmp_path / method)
    session = onnxruntime.InferenceSession(to_onnx(model), providers=["CPUExecutionProvider"])
    for number in (1, 7):
        images = torch.randint(0, 256, (number, 1, 8, 8), dtype=torch.uint8)
        (found,) = session.run(None, {"images": images.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), model.predict(images), atol=1e-4, rtol=1e-3)


def test_a_model_that_came_out_otherwise_is_not_handed_out(tmp_path, monkeypatch):
    model = trained("supervised", tmp_path / "run")
    predict = Classifier.forward

    def other_each_time(self: Classifier, images: Tensor) -> Tensor:
        traced = torch.compiler.is_exporting()
        return predict(self, images) * (0.5 if traced else 1.0)

    monkeypatch.setattr(Classifier, "forward", other_each_time)
    with pytest.raises(AggMatchError, match="predicts differently from the original"):
        to_onnx(model)


def test_a_missing_package_is_named_with_the_way_to_get_it(tmp_path, monkeypatch):
    model = trained("supervised", tmp_path / "run")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(AggMatchError, match=r"needs onnxscript: pip install 'aggmatch\[export\]'"):
        to_onnx(model)
