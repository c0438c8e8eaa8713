"""Export of models to ONNX, for methods that predict in different ways."""

import sys
from random import Random

import pytest
import torch
from torch import Tensor

from aggmatch.errors import AggMatchError
from aggmatch.inference.export import Classifier, read_onnx, to_onnx
from aggmatch.inference.model import TrainedModel
from aggmatch.settings import resolve
from aggmatch.training.begin import start

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


@pytest.mark.parametrize("method", ["featmatch", "paws"])  # they have their own rules of prediction
def test_the_exported_model_predicts_like_the_original_for_any_number_of_images(method, tmp_path):
    model = trained(method, tmp_path / method)
    session = onnxruntime.InferenceSession(to_onnx(model), providers=["CPUExecutionProvider"])
    for number in (1, 7):
        images = torch.randint(0, 256, (number, 1, 8, 8), dtype=torch.uint8)
        (found,) = session.run(None, {"images": images.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), model.predict(images), atol=1e-4, rtol=1e-3)


def test_an_exported_model_that_predicts_differently_is_an_error(tmp_path, monkeypatch):
    model = trained("supervised", tmp_path / "run")
    predict = Classifier.forward

    def half_when_traced(self: Classifier, images: Tensor) -> Tensor:
        traced = torch.compiler.is_exporting()
        return predict(self, images) * (0.5 if traced else 1.0)

    monkeypatch.setattr(Classifier, "forward", half_when_traced)
    with pytest.raises(AggMatchError, match="predicts differently"):
        to_onnx(model)


def test_the_error_of_a_missing_package_says_how_to_install_it(tmp_path, monkeypatch):
    model = trained("supervised", tmp_path / "run")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(AggMatchError, match=r"onnxscript.*aggmatch\[export\]"):
        to_onnx(model)


def test_the_digest_of_an_exported_model_shows_every_damage(tmp_path):
    content, path = to_onnx(trained("supervised", tmp_path / "run")), tmp_path / "model.onnx"
    path.write_bytes(content)
    session = onnxruntime.InferenceSession(read_onnx(path), providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map.keys() == {"classes", "digest"}
    random = Random(0)
    for _ in range(200):
        damaged = bytearray(content)
        damaged[random.randrange(len(content))] ^= 1 << random.randrange(8)
        path.write_bytes(damaged if random.random() < 0.8 else content[: random.randrange(len(content))])
        with pytest.raises(AggMatchError, match=r"model\.onnx is corrupt"):
            read_onnx(path)
    with pytest.raises(AggMatchError, match=r"missing\.onnx: No such file"):
        read_onnx(tmp_path / "missing.onnx")
