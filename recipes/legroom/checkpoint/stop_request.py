"""Signals that ask a training to save a checkpoint and stop."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from legroom.machine import signals


class StopNow(BaseException):
    """A signal has arrived in a phase that has no training step to finish first."""


class StopRequest:
    """Whether a signal has asked the training to stop. A training step that runs is finished first.

    A worker, in which the signals are blocked, looks for them (`asked`) after each step; its parent, which waits for
    messages, has handlers (`listening`).
    to_stop: a signal has arrived. signal: its name. at_once: a signal raises StopNow.
    """

    def __init__(self) -> None:
        self.to_stop = False
        self.looks = False
        self.at_once = False
        self.signal: str | None = None

    def look(self) -> None:
        """In a worker that saves on signals: from now on `asked` looks for blocked ones."""
        signals.block()
        for number in signals.OF_CLUSTERS:  # for what a library unblocks, as multiprocessing does
            signal.signal(number, self)
        self.looks = True

    def asked(self) -> bool:
        """Whether a signal has arrived."""
        if self.looks and not self.to_stop:
            number = signals.take_pending()
            if number is not None:
                self._note(number)
        return self.to_stop

    def listening(self) -> contextlib.AbstractContextManager[None]:
        """Inside, handlers are installed, if in the main thread. Signals that are ignored stay ignored.

        In a task of submitit SIGUSR2 keeps its handler, which saves first and requeues the job.
        """
        numbers = list(signals.OF_CLUSTERS)
        if "SUBMITIT_EXECUTOR" in os.environ:
            numbers.remove(signal.SIGUSR2)
        return handled(numbers, self)

    def stop_at_once(self) -> None:
        """Call this after the last step: from now on a signal raises StopNow. Raises it if one has arrived already."""
        if self.asked():
            raise StopNow
        self.at_once = True
        if self.looks:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.OF_CLUSTERS)

    def stop_later(self) -> None:
        """The inverse of `stop_at_once`."""
        self.at_once = False
        if self.looks:
            signals.block()

    def __call__(self, number: int = signal.SIGTERM, *_: Any) -> None:
        """The signal handler."""
        self._note(number)
        if self.at_once:
            self.at_once = False  # a second signal must not end what the first one asks for
            raise StopNow

    def _note(self, number: int) -> None:
        self.to_stop = True
        if self.signal is None:
            self.signal = signal.Signals(number).name


@contextlib.contextmanager
def handled(numbers: Iterable[int], handler: Any) -> Iterator[None]:
    """Inside, signals have this handler and are not blocked.

    Only the main thread can do that; in another one nothing changes. Signals that are ignored stay ignored.
    """
    wanted = []
    if threading.current_thread() is threading.main_thread():
        wanted = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in wanted}
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, wanted)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, former in before.items():
            signal.signal(number, former)
