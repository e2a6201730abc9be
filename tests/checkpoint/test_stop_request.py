"""Who answers a signal that asks a run to stop."""

import os
import signal
import threading

import pytest

from legroom.checkpoint.stop_request import StopNow, StopRequest
from legroom.machine import signals

NUMBERS = [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2]


@pytest.fixture
def mask():
    """The signals of a cluster as they were: a worker has them blocked for good."""
    before, handlers = signal.pthread_sigmask(signal.SIG_BLOCK, []), [signal.getsignal(each) for each in NUMBERS]
    yield
    while signals.take_pending():
        pass
    for number, handler in zip(NUMBERS, handlers):
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.parametrize("number", NUMBERS)
def test_worker_looks_for_blocked_signals(mask, number):
    stop = StopRequest()
    stop.look()
    signal.pthread_kill(threading.main_thread().ident, number)  # other threads of the tests have it not blocked
    assert not stop.to_stop and stop.asked() and stop.asked() and stop.signal == signal.Signals(number).name


@pytest.mark.parametrize("number", NUMBERS)
def test_signal_after_the_last_step(mask, number):
    stop = StopRequest()
    stop.look()
    stop.stop_at_once()
    with pytest.raises(StopNow):
        os.kill(os.getpid(), number)
        threading.Event().wait(10)
    os.kill(os.getpid(), number)  # a second one does not end what the first one asks for
    stop.stop_later()
    os.kill(os.getpid(), number)
    assert stop.asked()


def test_only_the_main_thread_has_handlers():
    def handler(found):
        with StopRequest().listening():
            found.append(signal.getsignal(signal.SIGTERM))

    before, found = signal.getsignal(signal.SIGTERM), []
    handler(found)
    thread = threading.Thread(target=handler, args=(found,))
    thread.start()
    thread.join()
    assert isinstance(found[0], StopRequest) and found[1] == before == signal.getsignal(signal.SIGTERM)


def test_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        stop = StopRequest()
        with stop.listening():
            os.kill(os.getpid(), signal.SIGUSR1)
        assert not stop.to_stop
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_submitit_keeps_its_signal(monkeypatch):
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    before = signal.getsignal(signal.SIGUSR2)
    with StopRequest().listening():
        assert signal.getsignal(signal.SIGUSR2) == before and signal.getsignal(signal.SIGTERM) != before
