"""Signals that ask a training to save and stop."""

from __future__ import annotations

import contextlib
import signal
import threading

# What a cluster sends before it takes a machine: SLURM's --signal=USR1, and SIGTERM, which comes before SIGKILL.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopNow(BaseException):
    """A signal has asked for an end, where no training step is waited for."""


class StopRequest:
    """Whether a signal has asked for an end. The step that runs is finished first."""

    def __init__(self):
        self.to_stop = self.listens = self.at_once = False

    def listen(self) -> None:
        """From here on the signals only set the flag."""
        for number in SIGNALS:
            signal.signal(number, self)

    @contextlib.contextmanager
    def listening(self, on: bool):
        """Listen for a while, in the main thread, where that is wanted and nobody has asked to be left alone."""
        numbers = SIGNALS if on and threading.current_thread() is threading.main_thread() else ()
        self.listens = bool(numbers)
        before = {
            number: signal.signal(number, self) for number in numbers if signal.getsignal(number) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop_at_once(self) -> None:
        """The training is over: from here on a signal raises Stopped, and so does one that came before."""
        self.at_once = True
        if self.to_stop:
            raise StopNow

    def __call__(self, *_) -> None:
        self.to_stop = True
        if self.at_once:
            raise StopNow
