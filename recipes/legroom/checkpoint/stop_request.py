"""Signals that ask a training to save a checkpoint and stop."""

import contextlib
import signal
import threading
from collections.abc import Iterable, Iterator
from typing import Any

# What a cluster sends before it takes a machine back: SLURM's --signal=USR1, and SIGTERM before SIGKILL.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopNow(BaseException):
    """A signal has arrived in a phase that has no training step to finish first."""


class StopRequest:
    """Whether a signal has asked the training to stop. A training step that runs is finished first.

    to_stop: a signal has arrived. listens: `listening` has installed handlers. at_once: a signal raises StopNow.
    """

    def __init__(self) -> None:
        self.to_stop = self.listens = self.at_once = False

    def listen(self) -> None:
        """Installs handlers that only set `to_stop`."""
        for number in SIGNALS:
            signal.signal(number, self)

    def listening(self, enabled: bool) -> contextlib.AbstractContextManager[None]:
        """Inside, handlers are installed, if enabled and in the main thread. Signals that are ignored stay ignored."""
        self.listens = enabled and threading.current_thread() is threading.main_thread()
        return handled(SIGNALS if enabled else (), self)

    def stop_at_once(self) -> None:
        """Call this after the last step: from now on a signal raises StopNow. Raises it if one has arrived already."""
        self.at_once = not self.to_stop
        if self.to_stop:
            raise StopNow

    def __call__(self, *_: Any) -> None:
        """The signal handler."""
        self.to_stop = True
        if self.at_once:
            self.at_once = False  # a second signal must not end what the first one asks for
            raise StopNow


@contextlib.contextmanager
def handled(numbers: Iterable[int], handler: Any) -> Iterator[None]:
    """Inside, signals have this handler, where that is possible: in the main thread, and if they are not ignored."""
    is_main = threading.current_thread() is threading.main_thread()
    wanted = [number for number in numbers if is_main and signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in wanted}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
