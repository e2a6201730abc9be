"""Who hears a signal that asks a run to stop, and what is said to it."""

import multiprocessing
import os
import signal
import threading
import time

import pytest
from conftest import small

from legroom.checkpoint.stop_request import StopRequest
from legroom.jobs import launch, supervise
from legroom.ranks.rank_info import RankInfo


def test_the_main_thread_alone_listens():
    heard = {}

    def listen(name, enabled):
        stop = StopRequest()
        with stop.listening(enabled):
            heard[name] = stop.listens

    listen("main", True)
    listen("main, not enabled", False)
    thread = threading.Thread(target=listen, args=("another", False))
    thread.start()
    thread.join()
    assert heard == {"main": True, "main, not enabled": False, "another": False}


class Waits:
    """A worker in a long step."""

    returncode = None

    def __init__(self):
        self.signals = []

    def poll(self):
        return None

    def send_signal(self, number):
        self.signals.append(number)


@pytest.mark.parametrize(
    "words,phase,end,signals",
    [
        ([], "train", "timeout", [signal.SIGTERM]),
        ([], "eval", "timeout", [signal.SIGTERM]),  # it is left at once
        (["recipe=estimate", "gpu=l4_24gb", "device=auto"], "load", "interrupted", []),  # it has nothing to save
    ],
)
def test_a_request_to_stop_is_answered_at_once(make_job, words, phase, end, signals):
    shown, worker = [], Waits()
    supervisor = supervise.Supervisor(make_job(*small(*words)), shown.append)
    supervisor.workers = [launch.Running(worker, multiprocessing.Pipe()[0], RankInfo())]  # type: ignore[arg-type]
    supervisor.phase, supervisor._stop.to_stop = phase, True
    assert supervisor._watch(time.monotonic() + 0.1, forward_stop=True) == end and worker.signals == signals
    said = [f"kill -INT {os.getpid()}" in each.text and "step is finished" in each.text for each in shown]
    assert said == [True] * (phase == "train")
