import shlex
import sys
from typing import Any

import pytest
from tests.folders import write_folder

from aggmatch import cli
from aggmatch.report.summary import changed_settings, command, difference_rows, setting_rows
from aggmatch.runs.stored import read_runs


class Captured(Exception):  # noqa: N818
    """Stops the command line before training starts."""


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"data__fold": 2, "train__steps": 30, "train__seed": 7},
        {"views__ops": ["identity", "rotate"], "method__threshold": 0.8, "views__flip": False},
        {"data__noise": "asymmetric", "data__noise_rate": 0.25, "data__noise_map": ["3>8", "4>9"]},
        {"method": "aggmatch", "recipe": "cold-start", "train__steps": 100},
        {"train__steps": 500, "train__evaluate_every": 100},
        {"method": "aggmatch", "method__class_term": "none", "method__momentum_encoder": False},
        {"data__labeled_imbalance": 5.0},
        {"data__labels": None},
    ],
)
def test_the_command_repeats_the_configuration(tmp_path, monkeypatch, changes: dict[str, Any]):
    (run,) = read_runs([write_folder(tmp_path / "a", **changes)])

    def start(settings, out, **options):
        raise Captured(settings.identity())

    monkeypatch.setattr("aggmatch.training.begin.start", start)
    monkeypatch.setattr(sys, "argv", shlex.split(command(run)))
    with pytest.raises(Captured) as captured:
        cli.main()
    assert captured.value.args[0] == run.settings.identity()


def test_the_command_names_only_what_differs_from_the_recipe(tmp_path):
    (run,) = read_runs([write_folder(tmp_path / "a", optim__lr=0.1)])
    assert command(run) == "aggmatch train digits --method fixmatch --labels 40 --fold 0 --set optim.lr=0.1"


def test_the_command_asks_for_all_labels_if_the_recipe_takes_fewer(tmp_path):
    (run,) = read_runs([write_folder(tmp_path / "a", data__labels=None)])
    assert command(run) == "aggmatch train digits --method fixmatch --fold 0 --set data.labels=none"


def test_a_given_split_replaces_labels_and_fold_in_the_command(tmp_path):
    (run,) = read_runs([write_folder(tmp_path / "a", data__split="s.json", data__fold=3)])
    assert command(run) == "aggmatch train digits --method fixmatch --split s.json"


def test_only_differences_from_the_recipe_are_marked(tmp_path):
    (run,) = read_runs([write_folder(tmp_path / "a", optim__lr=0.1, runtime__device="cpu")])
    assert changed_settings(run) == {"data.labels": 40, "optim.lr": 0.1}
    rows = {row.key: row for row in setting_rows(run)}
    assert (rows["optim.lr"].values, rows["optim.lr"].usual, rows["optim.lr"].departs) == (["0.1"], "0.03", True)
    assert (rows["views.rounds"].values, rows["views.rounds"].usual, rows["views.rounds"].departs) == (
        ["1"],
        "1",
        False,
    )
    assert rows["data.split"].values == ["none"]
    assert rows["runtime.graph"].values == ["true"]


def test_what_a_recipe_shortens_for_a_short_run_is_no_difference(tmp_path):
    short: dict[str, Any] = {"method": "aggmatch", "recipe": "cold-start", "train__steps": 100}
    (run,) = read_runs([write_folder(tmp_path / "a", **short)])
    assert changed_settings(run) == {"data.labels": 40, "train.steps": 100}
    row = next(row for row in setting_rows(run) if row.key == "method.warmup")
    assert (row.values, row.usual, row.departs) == (["25"], "25", False)
    (run,) = read_runs([write_folder(tmp_path / "b", **short, method__warmup=100)])
    assert changed_settings(run)["method.warmup"] == 100


def test_only_settings_in_which_runs_differ_are_shown(tmp_path):
    runs = read_runs([write_folder(tmp_path / "a"), write_folder(tmp_path / "b", method="supervised", optim__lr=0.1)])
    rows = {row.key: row for row in difference_rows(runs)}
    others = {key for key in rows if not key.startswith("method.")}
    assert others == {"optim.lr", "optim.average", "optim.weight_decay"}
    assert rows["method.name"].values == ["fixmatch", "supervised"]
    assert rows["method.threshold"].values == ["0.95", "–"]
    assert (rows["optim.lr"].values, rows["optim.lr"].departs) == (["0.03", "0.1"], True)
    assert not rows["method.threshold"].departs
