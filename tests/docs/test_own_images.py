"""The examples of docs/own-images.md run as they are printed."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import aggmatch
from aggmatch.data.own import archive, decode
from aggmatch.data.own.labels_file import read_labels
from aggmatch.storage import cache

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


@pytest.mark.parametrize(("channels", "side"), [(3, 32), (3, 20), (1, 16)])
def test_the_exported_file_classifies_a_photo_as_shown(tmp_path, monkeypatch, capsys, channels, side):
    pytest.importorskip("onnxruntime")
    from aggmatch.inference.export import to_onnx

    monkeypatch.chdir(tmp_path)
    exec(example("aggmatch.DataSet").replace("3, 32, 32", f"{channels}, {side}, {side}"), {})
    model = aggmatch.TrainedModel.load("runs/mine")
    Path("model.onnx").write_bytes(to_onnx(model))
    noise = np.random.default_rng(0).integers(0, 256, (side + 5, side + 9, 3), dtype=np.uint8)
    Image.fromarray(noise).save("photo.jpg")  # so small that training does not decode it at half its size either
    capsys.readouterr()
    names: dict[str, object] = {}
    exec(example("InferenceSession"), names)
    assert names["classes"] == ["left", "right"]
    ((_, expected),) = model.predict_files([Path("photo.jpg")])
    np.testing.assert_allclose(np.asarray(names["probabilities"])[0], expected.numpy(), atol=1e-3)
    assert re.fullmatch(r"(left|right) 0\.\d+\n", capsys.readouterr().out)


def test_the_arrays_that_are_written_as_shown_are_a_data_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(example("np.savez"))
    data = aggmatch.load("data.npz")
    assert (data.classes, len(data.train), len(data.test)) == (("cat", "dog"), 96, 4)


def test_the_table_is_read_as_shown(tmp_path):
    (shown,) = [text for text in re.findall(r"```text\n(.*?)```", PAGE.read_text(), flags=re.S) if "file,label" in text]
    (tmp_path / "labels.csv").write_text(shown)
    rows = read_labels(tmp_path / "labels.csv")
    assert [row.label for row in rows] == ["rose", "tulip", ""]


def test_the_page_states_the_limits_of_the_code():
    text = " ".join(PAGE.read_text().split())
    assert f"up to {decode.MOST_PIXELS // 10**6} million pixels" in text
    assert f"may have up to {2 * (Image.MAX_IMAGE_PIXELS or 0) // 10**6} million pixels" in text
    assert f"take at most {cache.LIMIT // 2**30} GiB and the unpacked archives {archive.UNPACKED // 2**30} GiB" in text
