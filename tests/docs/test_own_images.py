"""The examples of docs/own-images.md run as they are printed."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import aggmatch

PAGE = Path(__file__).parents[2] / "docs/own-images.md"


def example(word: str) -> str:
    """The one Python block that has a word in it."""
    (found,) = [block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S) if word in block]
    return found


def test_a_data_set_in_memory_trains_resumes_and_predicts_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(example("aggmatch.DataSet"), names)
    assert re.fullmatch(r"1 [\d.]+\n2 [\d.]+\n", capsys.readouterr().out)
    Path("runs/mine/summary.json").unlink()
    data = names["data"]
    assert isinstance(data, aggmatch.DataSet)
    assert list(aggmatch.resume("runs/mine", data=data).train()) == [], "its last step was saved"
    assert Path("runs/mine/summary.json").exists()
    Path("photos").mkdir()
    Image.fromarray(np.zeros((40, 50, 3), dtype=np.uint8)).save("photos/a.jpg")
    exec(example("predict_files"))
    assert re.fullmatch(r"photos/a\.jpg (left|right) 0\.\d+\n", capsys.readouterr().out)


def test_the_exported_file_is_read_as_shown(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    from aggmatch.inference.export import to_onnx

    monkeypatch.chdir(tmp_path)
    exec(example("aggmatch.DataSet"), {})
    Path("model.onnx").write_bytes(to_onnx(aggmatch.TrainedModel.load("runs/mine")))
    names: dict[str, object] = {}
    exec(example("InferenceSession"), names)
    assert names["classes"] == ["left", "right"]
    assert np.asarray(names["probabilities"]).shape == (2, 2)
