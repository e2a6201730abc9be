"""The signals by which a cluster asks for its machine, which the process of the run alone answers.

SLURM sends them to every process of a job. Whatever is started beside a run (workers, loaders of batches, the fork
server, trackers) is therefore born with them blocked: processes and threads inherit that, also those that libraries
start, and programs that are no Python. `checkpoint.stop_request` says what a run does with them.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

# SIGTERM comes before SIGKILL; SLURM's --signal=USR1; submitit's SIGUSR2.
OF_CLUSTERS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
LOOK_SECONDS = 0.1  # between two looks at whether a block is left


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Inside, this thread blocks the signals, and so do the processes and threads that it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, OF_CLUSTERS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def block() -> None:
    """Block the signals in this thread from now on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, OF_CLUSTERS)


def take_pending() -> signal.Signals | None:
    """A blocked signal that has arrived, which is taken; or None."""
    pending = signal.sigpending() & set(OF_CLUSTERS)
    if not pending:
        return None
    return signal.Signals(signal.sigwait(pending))


@contextlib.contextmanager
def passed_to_a_thread(handle: Callable[[int], None]) -> Iterator[None]:
    """Inside, this thread blocks the signals, and so do the processes that it starts; `handle` is called with each.

    To be entered in the main thread. Another thread that was there before may not block them, hence handlers beside the
    thread that waits for what is blocked.
    """
    left = threading.Event()

    def listen() -> None:
        while not left.wait(LOOK_SECONDS):
            number = take_pending()
            if number is not None:
                handle(number)

    with blocked():
        former = {}
        for number in OF_CLUSTERS:
            former[number] = signal.signal(number, lambda number, _: handle(number))
        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        try:
            yield
        finally:
            left.set()
            thread.join()
            for number, handler in former.items():
                signal.signal(number, handler)


def send_to_children(number: int) -> None:
    """Send a signal to the processes that this one has started, though not to theirs."""
    import psutil

    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error, OSError):
            os.kill(child.pid, number)
