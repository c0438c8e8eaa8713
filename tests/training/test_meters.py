import pytest
import torch

from aggmatch.errors import AggMatchError
from aggmatch.training.meters import Meters, Pace, pseudo_label_metrics


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


def test_a_vector_has_a_mean_for_each_item():
    meters = Meters(torch.device("cpu"))
    for step, shares in enumerate(([0.0, 1.0, 2.0], [1.0, 1.0, 4.0])):
        values = {"loss": torch.tensor(1.0), "shares": torch.tensor(shares), "rate": torch.tensor(2.0)}
        meters.add(values, torch.tensor(float(step)))
    assert meters.read() == {"loss": 1.0, "shares": [0.5, 1.0, 3.0], "rate": 2.0}
    with pytest.raises(AggMatchError, match="after loss, shares, rate"):
        meters.add({"loss": torch.tensor(1.0)}, torch.tensor(2.0))


def test_an_item_of_a_vector_that_is_not_finite_is_found():
    meters = Meters(torch.device("cpu"))
    meters.add({"shares": torch.tensor([1.0, float("nan")])}, torch.tensor(4.0))
    assert meters.first_bad_value() == ("shares", 5)


def test_pseudo_label_metrics_are_quotients_of_means():
    means = {"loss": 1.0, "pseudo_recall": 0.2, "pseudo_coverage": 0.5, "pseudo_by_class": [0.1, 0.4]}
    means |= {"pseudo_ordered": 0.15, "pseudo_pairs": 0.2, "pseudo_precision_by_weight": [0.0, 1 / 3]}
    assert pseudo_label_metrics(means) == {
        "loss": 1.0,
        "pseudo_recall": 0.2,
        "pseudo_coverage": 0.5,
        "pseudo_precision": pytest.approx(0.4),
        "pseudo_class_share": [0.2, 0.8],
        "pseudo_auc": pytest.approx(0.75),
        "pseudo_precision_by_weight": [0.0, 0.3333],
    }


def test_quotients_of_nothing_are_left_out():
    means = {"pseudo_recall": 0.0, "pseudo_coverage": 0.0, "pseudo_by_class": [0.0, 0.0]}
    means |= {"pseudo_ordered": 0.0, "pseudo_pairs": 0.0}
    assert pseudo_label_metrics(means) == {"pseudo_recall": 0.0, "pseudo_coverage": 0.0}
    assert pseudo_label_metrics({"loss": 1.0}) == {"loss": 1.0}


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
    pace = Pace(step=5)
    assert pace.read(9, images_per_step=30) == 4 * 30 / 2
    pace.restart(20)  # after an evaluation of eight seconds
    assert pace.read(21, images_per_step=20) == 20.0
