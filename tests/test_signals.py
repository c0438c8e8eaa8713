import os
import signal
import threading

import pytest

from aggmatch.signals import STOPPING, signals


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture
def handlers():
    """The signal handlers before the test, which are restored after it."""
    before = {number: signal.getsignal(number) for number in STOPPING}
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


def current() -> dict[signal.Signals, object]:
    return {number: signal.getsignal(number) for number in STOPPING}


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_is_collected_and_the_handlers_are_restored(handlers, number):
    with signals() as received:
        send(number)
        assert received == [number]
    assert current() == handlers


@pytest.mark.parametrize("first", STOPPING)
def test_ctrl_c_after_another_signal_interrupts_at_once(handlers, first):
    with signals() as received:
        send(first)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
    assert received == [first]
    assert current() == handlers


@pytest.mark.parametrize("inner_first", [True, False])
def test_collectors_may_end_in_any_order(handlers, inner_first):
    contexts = [signals(), signals()]
    outer, inner = (context.__enter__() for context in contexts)
    send(signal.SIGTERM)
    assert outer == inner == [signal.SIGTERM]
    for context in reversed(contexts) if inner_first else contexts:
        context.__exit__(None, None, None)
    assert current() == handlers


def test_a_handler_that_somebody_sets_meanwhile_stays(handlers):
    def own(number, frame):
        raise AssertionError

    with signals():
        signal.signal(signal.SIGTERM, own)
    assert signal.getsignal(signal.SIGTERM) is own
    assert signal.getsignal(signal.SIGINT) == handlers[signal.SIGINT]


def test_outside_the_main_thread_nothing_is_collected(handlers):
    seen: list[object] = []

    def work():
        with signals() as received:
            seen.extend([received, current()])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [[], handlers]
