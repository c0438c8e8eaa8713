"""A few cases of each kind of fault; `make faults` tries thousands."""

import errno

import pytest
from tests.faults.damage import try_damage
from tests.faults.hostile import try_hostile
from tests.faults.kills import try_kills
from tests.faults.machine import COMPILER, Fault, Machine
from tests.faults.runs import train
from tests.faults.soak import GROWTH, Use, problems, try_soak
from tests.faults.writes import is_clean, try_commands

needs_compiler = pytest.mark.skipif(not COMPILER, reason="the failing disk needs a C compiler")


@pytest.fixture(scope="module")
def machine():
    with Machine() as machine:
        yield machine


@needs_compiler
def test_a_disk_fails_at_the_chosen_write(machine, tmp_path):
    ended = [train(machine, tmp_path, fault) for fault in (Fault(1, errno.EIO), Fault(4, errno.ENOSPC, True), Fault(9))]
    assert [(done.code, is_clean(done)) for done in ended[:2]] == [(2, ""), (2, "")]
    assert "Input/output error" in ended[0].err
    assert "No space left on device" in ended[1].err
    assert ended[2].code == -9


@needs_compiler
def test_killed_runs_continue_to_the_same_weights_and_log(machine, tmp_path):
    tally = try_kills(machine, tmp_path, kills=2)
    assert not tally.wrong, tally
    assert tally.cases >= 2


@needs_compiler
def test_a_failing_disk_leaves_outputs_whole(machine, tmp_path):
    for tally in try_commands(machine, tmp_path, ["predict"], every=4):
        assert not tally.wrong, tally
        assert tally.cases == 6


@pytest.mark.parametrize("finished", [True, False])
def test_damaged_files_are_detected_or_harmless(tmp_path, finished):
    tally = try_damage(tmp_path, 20 if finished else 5, finished=finished)
    assert not tally.wrong, tally
    assert tally.outcomes["refused"]


def test_hostile_inputs_are_refused_or_read(tmp_path):
    for tally in try_hostile(tmp_path, 8):
        assert not tally.wrong, tally
        assert tally.cases == 8


def test_a_long_run_is_measured(tmp_path):
    tally = try_soak(tmp_path, 4)
    assert tally.cases == 1


def test_growing_memory_files_and_threads_are_found():
    flat = [Use(step, 300 + step % 3, 12, 5) for step in range(100)]
    assert problems(flat) == []
    grown = [
        Use(use.step, use.memory + use.step * GROWTH / 20, 12 + use.step // 20, 5 + use.step // 90) for use in flat
    ]
    assert [problem.split()[0] for problem in problems(grown)] == ["memory", "files", "threads"]
