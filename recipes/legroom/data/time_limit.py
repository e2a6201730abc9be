"""A time limit for a call that runs somebody else's program, as a chat template is one."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def limited(seconds: float, what: str) -> Iterator[None]:
    """Inside, Python code runs for so many seconds at most. what: names it in the error.

    Without effect outside the main thread, in which alone Python answers signals. Raises TimeoutError.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: Any) -> None:
        raise TimeoutError(f"{what} has not ended after {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
