"""Several seeds of one run, of which the loss chooses one."""

from pathlib import Path

import pytest
from tests.folders import write_folder

from aggmatch.errors import AggMatchError
from aggmatch.experiments import tries
from aggmatch.runs.stored import read_run
from aggmatch.settings import resolve


def losses(*values: float) -> list[dict[str, float]]:
    return [{"step": step, "seconds": 1.0, "loss": loss} for step, loss in enumerate(values, 1)]


def test_tries_differ_in_their_seed_and_folder_alone():
    settings = resolve({"train.seed": 4, "data.fold": 2})
    runs = tries.plan(settings, Path("runs/mine"), 3)
    assert [str(run.path) for run in runs] == ["runs/mine", "runs/mine-seed5", "runs/mine-seed6"]
    assert runs[0].settings == settings
    assert [run.settings.train.seed for run in runs] == [4, 5, 6]
    assert {run.settings.data.fold for run in runs} == {2}


def test_the_lowest_loss_at_the_end_comes_first_whatever_the_accuracy(tmp_path: Path):
    early, late = [9.0] * 9, [1.0] * 9
    write_folder(tmp_path / "a", losses(*late, 0.5), {"accuracy": 90.0})
    write_folder(tmp_path / "b", losses(*early, 0.4), {"accuracy": 40.0}, train__seed=1)
    write_folder(tmp_path / "c", losses(0.1), train__seed=2)  # not finished
    runs = tries.by_loss([read_run(tmp_path / name) for name in "abc"])
    assert [run.path for run in runs] == [tmp_path / "b", tmp_path / "a"]
    table = tries.table(runs)
    assert "paper recipe" in table.title
    assert [(row[0], row[1], row[2]) for row in table.rows] == [(1, "0.4000", 40.0), (0, "0.5000", 90.0)]


@pytest.mark.parametrize(("second", "little"), [(0.401, True), (0.41, False)])
def test_losses_that_hardly_differ_are_called_so(tmp_path: Path, second: float, little: bool):
    write_folder(tmp_path / "a", losses(second), {})
    write_folder(tmp_path / "b", losses(0.4), {}, train__seed=1)
    said = tries.verdict(tries.by_loss([read_run(tmp_path / name) for name in "ab"]))
    assert said.startswith("Seed 1 ")
    assert ("means little" in said) == little


def test_the_loss_at_the_end_is_the_mean_of_the_last_tenth(tmp_path: Path):
    run = read_run(write_folder(tmp_path / "a", losses(*[5.0] * 18, 1.0, 2.0), {}))
    assert run.last_loss == 1.5
    assert read_run(write_folder(tmp_path / "b", [], {})).last_loss is None


def test_without_a_finished_try_none_is_chosen(tmp_path: Path):
    with pytest.raises(AggMatchError, match="finished"):
        tries.by_loss([read_run(write_folder(tmp_path / "a", losses(1.0)))])


@pytest.mark.parametrize(("device", "cores", "expected"), [("cpu", 2, 2), ("cpu", 8, 3), ("cuda", 8, 1)])
def test_tries_run_side_by_side_on_a_cpu(monkeypatch: pytest.MonkeyPatch, device: str, cores: int, expected: int):
    monkeypatch.setattr(tries, "cores", lambda: cores)
    assert tries.at_once(3, device) == expected
