"""The processes of a run, as far as one process shows them; tests/distributed has several."""

import copy

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from aggmatch.distributed import Processes, under_torchrun
from aggmatch.distributed.heartbeat import Heartbeat
from aggmatch.errors import AggMatchError
from aggmatch.validate import InvalidValue


def test_without_torchrun_a_process_is_the_first_and_only_one(monkeypatch):
    monkeypatch.setenv("RANK", "1")  # some clusters set it for everything
    assert not under_torchrun()
    alone = Processes()
    assert alone.first
    assert not alone.divides
    assert alone.share({"a": 1}) == {"a": 1}
    assert alone.largest(3) == 3
    assert copy.deepcopy(alone) is alone


def test_processes_that_continue_from_different_steps_are_refused():
    class Two(Processes):
        def largest(self, number: int) -> int:
            return max(number, 4, key=abs) if number > 0 else max(number, 0)

    with pytest.raises(AggMatchError, match="do not agree on the step: 0 and 8"):
        Two(0, 2).check_same("the step", 8)


def test_under_torchrun_a_process_has_the_gpu_of_its_number():
    processes = Processes(1, 2, 1, store=object())
    with pytest.raises(InvalidValue, match="must be auto, cpu or cuda under torchrun, got 'cuda:1'"):
        processes.device("cuda:1")
    assert processes.device("cpu").type == "cpu"


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert Processes(1, 3, 1, store=object()).device("auto").index == 1
    with pytest.raises(AggMatchError, match="Start at most 2"):
        Processes(2, 3, 2, store=object()).device("auto")


def test_a_process_that_waits_for_a_lost_store_says_who_has_stopped():
    class Lost:
        def check(self, _: object) -> bool:
            raise RuntimeError("connection closed")

    class Told(Heartbeat):
        def find_stopped(self) -> None:
            raise AggMatchError("Process 0 of 2, on there, stopped.")

    processes = Processes(1, 2, 1, Told(HashStore(), 1, 2, "torchrun"), Lost())
    with pytest.raises(AggMatchError, match="Process 0 of 2, on there, stopped."):
        processes.share(None)
