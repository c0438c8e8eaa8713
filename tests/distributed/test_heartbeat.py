"""Signs of life: a process that stops is reported once, and ends the others."""

import time

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from aggmatch.distributed import heartbeat
from aggmatch.distributed.heartbeat import ADVICE, Heartbeat
from aggmatch.errors import AggMatchError


@pytest.fixture
def ends(monkeypatch):
    """Makes everything faster, and collects the exit codes of the process."""
    codes: list[int] = []
    for name, seconds in {"BEAT": 0.01, "PATIENCE": 0.2, "BEGINNING": 0.5, "GRACE": 0.3}.items():
        monkeypatch.setattr(heartbeat, name, seconds)
    monkeypatch.setattr("os._exit", codes.append)
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    return codes


def test_processes_that_live_leave_each_other_alone(ends):
    store = HashStore()
    beating = [Heartbeat(store, rank, 2, "torchrun") for rank in range(2)]
    for each in beating:
        each.start()
    time.sleep(0.5)
    for each in beating:
        each.check()
    beating[1].close()  # finished earlier
    time.sleep(0.5)
    beating[0].check()
    beating[0].close()
    assert ends == []


def test_a_silent_process_is_named_and_ends_the_others(ends, capsys):
    store = HashStore()
    beating, silent = (Heartbeat(store, rank, 2, "torchrun") for rank in range(2))
    beating.start()
    with pytest.raises(AggMatchError, match="Process 1 of 2, on here, stopped. Resume the run"):
        beating.find_stopped()
    beating.join()  # the main thread did not end the process in time
    assert ends == [2]
    assert capsys.readouterr().err == f"Error: Process 1 of 2, on here, stopped. {ADVICE}\n"
    assert silent.read("stopped").decode().startswith("Process 1")


def test_a_process_that_fails_tells_the_others_why(ends):
    store = HashStore()
    others = [Heartbeat(store, rank, 3, "torchrun") for rank in range(3)]
    for each in others:
        each.start()
    others[2].close("The disk is full.")
    others[1].announce(0, "later")
    for each in others[:2]:
        with pytest.raises(AggMatchError, match="Process 2 of 3, on here, stopped: The disk is full."):
            each.find_stopped()
        each.close()
    assert ends == []


def test_a_store_that_does_not_answer_counts_as_stopped(ends):
    class Gone(HashStore):
        def check(self, _: object) -> bool:
            raise RuntimeError("connection closed")

    beating = Heartbeat(Gone(), 0, 2, "torchrun, on there,")
    beating.start()
    with pytest.raises(AggMatchError, match="torchrun, on there, stopped."):
        beating.find_stopped()
    beating.close("also stops")
    assert ends == []


def test_a_store_on_a_lost_machine_counts_as_stopped_although_its_connection_stays_open(ends, capsys):
    class Lost(HashStore):
        def check(self, _: object) -> bool:
            time.sleep(1)  # longer than the test looks
            return False

    beating = Heartbeat(Lost(), 0, 2, "torchrun, on there,")
    beating.start()
    with pytest.raises(AggMatchError, match="torchrun, on there, stopped."):
        beating.find_stopped()
    beating.join()
    assert ends == [2]
    assert "torchrun, on there, stopped." in capsys.readouterr().err
    assert beating.talking.is_alive()
    beating.close("does not wait for the store forever")


def test_processes_that_were_suspended_together_leave_each_other_alone(ends, monkeypatch):
    store = HashStore()
    watching = Heartbeat(store, 0, 2, "torchrun")
    store.set("beat/1", "5")
    watching.watch()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 3600)
    watching.watch()  # the other one did not have time for a new sign of life
    assert not watching.report
    assert ends == []


def test_a_process_that_never_starts_ends_the_others_after_a_longer_time(ends):
    beating = Heartbeat(HashStore(), 0, 2, "torchrun")
    beating.start()
    assert not beating.noticed.wait(0.3)
    with pytest.raises(AggMatchError, match="Process 1 of 2 did not start"):
        beating.find_stopped()
    beating.close()
    assert ends == []
