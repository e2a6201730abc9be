"""Who hears a signal that asks a run to stop, and what is said to it."""

import threading

from legroom.checkpoint.stop_request import StopRequest


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
