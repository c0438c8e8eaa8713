"""How long a run will take, said before it starts."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import toy_settings

from aggmatch.data import DataSet, make_split
from aggmatch.experiments import forecast as module
from aggmatch.experiments.estimate import StepPace
from aggmatch.experiments.forecast import forecast, seconds_of_features

BACKBONE = f"{Path(__file__).parents[1] / 'training/frozen_backbone.py'}:Bands"


def test_a_run_on_images_takes_its_steps(toy_data: DataSet, monkeypatch: pytest.MonkeyPatch):
    settings = toy_settings("fixmatch", train__steps=100)
    monkeypatch.setattr(module, "measure", lambda *_: StepPace(2.0, "a clock"))
    assert forecast(settings, toy_data, make_split(toy_data, settings.data)) == "about 3 min 20 s"


def test_a_run_on_features_takes_less_if_they_are_cached(toy_data: DataSet, monkeypatch: pytest.MonkeyPatch):
    settings = toy_settings("fixmatch", train__steps=1000, train__backbone="frozen", model__name=BACKBONE)
    monkeypatch.setattr(module, "seconds_of_features", lambda *_: 100.0)
    assert (
        forecast(settings, toy_data, make_split(toy_data, settings.data))
        == "about 2 min 0 s, or 20 s if its features are cached"
    )


def test_an_estimate_of_the_accuracy_takes_longer_than_the_training(toy_data: DataSet, monkeypatch: pytest.MonkeyPatch):
    settings = toy_settings("fixmatch", train__steps=30, train__backbone="finetune", model__name=BACKBONE)
    monkeypatch.setattr(module, "measure", lambda *_: StepPace(2.0, "a clock"))
    monkeypatch.setattr(module, "seconds_of_features", lambda *_: 9.0)
    few = replace(toy_data, test=toy_data.test.take([0, 1, 2]))
    found = forecast(settings, few, make_split(few, settings.data))
    assert found == "about 1 min 9 s; then 1 min 40 s to estimate the accuracy"


def test_features_take_longer_for_more_views(toy_data: DataSet, monkeypatch: pytest.MonkeyPatch):
    def clock(function, device, calls):
        function()
        return type("Timing", (), {"median": 16.0})

    monkeypatch.setattr(module, "time_calls", clock)
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    few, many, start = (
        seconds_of_features(
            toy_settings("fixmatch", train__backbone=use, model__name=BACKBONE, views__cached=cached), toy_data
        )
        for use, cached in (("frozen", 1), ("frozen", 4), ("finetune", 4))
    )
    assert start == 3 * len(toy_data.train) + len(toy_data.test)  # the image and two weak views
    assert few == 3 * len(toy_data.train) + len(toy_data.test)  # plain, weak and strong, a second for each image
    assert many - few == 6 * len(toy_data.train)
