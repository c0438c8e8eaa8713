from collections import deque
from pathlib import Path

import pytest
from sklearn.neighbors import KNeighborsClassifier

from aggmatch.data import DataSettings, draw_split, load
from aggmatch.experiments import demo
from aggmatch.experiments.demo import label_spreading


def test_the_demo_trains_three_methods_and_puts_label_spreading_beside_them(tmp_path: Path, monkeypatch):
    quick = {"train.steps": 4, "model.name": "small-4", "train.batch": 10, "train.unlabeled_ratio": 1}
    monkeypatch.setattr(demo, "CHOSEN", demo.CHOSEN | quick)
    table = demo.run(tmp_path, 0, lambda run, title: deque(run.train(), maxlen=0).clear())
    assert [row[0] for row in table.rows] == ["supervised", "LabelSpreading (scikit-learn)", "fixmatch", "aggmatch"]
    assert all(0 <= row[1] <= 100 for row in table.rows)
    assert table.rows[0][2] is None
    assert table.rows[3][2] is not None
    assert all((tmp_path / method / "summary.json").exists() for method in demo.METHODS)


def test_label_spreading_uses_the_ten_labels_and_beats_the_nearest_labelled_image():
    data = load("digits", Path("nowhere"))
    split = draw_split(data, DataSettings(labels=10))
    accuracy, _ = label_spreading(data, split)
    labeled = data.train.pixels[split.labeled].flatten(1).numpy()
    nearest = KNeighborsClassifier(1).fit(labeled, split.labels.numpy())
    floor = 100 * nearest.score(data.test.pixels.flatten(1).numpy(), data.test.labels.numpy())
    assert accuracy > floor
    assert accuracy == pytest.approx(label_spreading(data, split)[0])
