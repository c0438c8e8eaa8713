"""Options that say where runs train, and the command of a task."""

import pytest

from aggmatch.cli.cluster import Place
from aggmatch.errors import AggMatchError
from aggmatch.experiments.engines.local import InParallel, InTurn
from aggmatch.experiments.engines.on_ray import OnRay
from aggmatch.experiments.engines.slurm import Slurm


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, InTurn),
        ({"at_once": 1}, InTurn),
        ({"at_once": 2}, InParallel),
        ({"on": "ray", "address": "local"}, OnRay),
        ({"on": "slurm", "slurm": ["time=1:00"], "submit": True}, Slurm),
    ],
)
def test_the_options_choose_the_engine(options, kind, tmp_path):
    assert type(Place(**options).engine(tmp_path, quiet=True, download=False)) is kind


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"on": "rey"}, "'ray'"),
        ({"address": "auto"}, "--address needs --on ray"),
        ({"on": "ray", "submit": True}, "--submit needs --on slurm"),
        ({"slurm": ["time=1:00"]}, "--slurm needs --on slurm"),
    ],
)
def test_options_of_another_place_are_refused(options, named):
    with pytest.raises(AggMatchError, match=named):
        Place(**options)


def test_a_wrong_place_is_reported_before_anything_is_planned(run, tmp_path):
    for command in ("compare digits", "reproduce main"):
        code, _, err = run(*command.split(), "--on", "cloud")
        assert code == 2
        assert "cloud" in err
    assert not list(tmp_path.iterdir())


def test_a_comparison_trains_several_runs_at_once(run, tmp_path, importable):
    words = "compare digits --labels 20 --folds 2 --steps 4 --methods supervised --out c --at-once 2"
    code, out, err = run(*words.split(), "--set", "model.name=small-4", "--set", "train.batch=10")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert {"supervised fold 0  finished", "supervised fold 1  finished"} <= set(lines)


def test_a_task_of_a_plan_that_is_not_there_is_an_error(run, tmp_path):
    code, _, err = run("planned", "nowhere.json", "--number", "0")
    assert code == 2
    assert "nowhere.json" in err
    (tmp_path / "plan.json").write_text('{"runs": [{"title": 3}]}')
    code, _, err = run("planned", "plan.json", "--number", "0")
    assert code == 2
    assert "plan.json" in err
