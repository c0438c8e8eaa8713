import pytest
import torch

from aggmatch.errors import AggMatchError
from aggmatch.training.meters import Meters, Pace


def add(meters: Meters, step: int, **values: float) -> None:
    meters.add({name: torch.tensor(value) for name, value in values.items()}, torch.tensor(float(step)))


def test_means_are_over_the_steps_since_the_last_read():
    meters = Meters(torch.device("cpu"))
    add(meters, 0, loss=1.0, rate=3.0)
    add(meters, 1, loss=2.0, rate=5.0)
    assert meters.first_bad_value() is None
    assert meters.read() == {"loss": 1.5, "rate": 4.0}
    add(meters, 2, loss=7.0, rate=1.0)
    assert meters.read() == {"loss": 7.0, "rate": 1.0}


def test_the_first_value_that_is_not_finite_is_found_with_its_step():
    meters = Meters(torch.device("cpu"))
    add(meters, 0, loss_labeled=1.0, loss_unlabeled=1.0, loss=2.0)
    add(meters, 1, loss_labeled=1.0, loss_unlabeled=float("inf"), loss=float("inf"))
    add(meters, 2, loss_labeled=float("nan"), loss_unlabeled=float("nan"), loss=float("nan"))
    assert meters.first_bad_value() == ("loss_unlabeled", 2)


def test_logging_other_names_than_before_fails():
    meters = Meters(torch.device("cpu"))
    add(meters, 0, loss=1.0, rate=3.0)
    for values in ({"rate": 3.0, "loss": 1.0}, {"loss": 1.0}):
        with pytest.raises(AggMatchError, match="after loss, rate"):
            add(meters, 1, **values)


def test_sums_from_a_version_that_logged_other_values_are_dropped():
    older, meters = Meters(torch.device("cpu")), Meters(torch.device("cpu"))
    add(older, 0, loss=1.0, precision=0.5)
    meters.load_state_dict(list(older.names), older.state_dict())
    add(meters, 1, loss=3.0)
    assert meters.read() == {"loss": 3.0}
    with pytest.raises(AggMatchError, match="same values"):
        add(meters, 2, loss=1.0, precision=0.5)


def test_meters_continue_from_their_state():
    whole, resumed = Meters(torch.device("cpu")), Meters(torch.device("cpu"))
    add(whole, 0, loss=1.0)
    resumed.load_state_dict(list(whole.names), {name: tensor.clone() for name, tensor in whole.state_dict().items()})
    for meters in (whole, resumed):
        add(meters, 1, loss=4.0)
    assert whole.read() == resumed.read() == {"loss": 2.5}


def test_pace_counts_the_images_since_the_last_read_or_restart(monkeypatch):
    clock = iter([100.0, 102.0, 102.0, 110.0, 111.0, 111.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    pace = Pace(images_per_step=30, step=5)
    assert pace.read(9) == 4 * 30 / 2
    pace.restart(20)  # after an evaluation of eight seconds
    assert pace.read(21) == 30.0
