"""What a process of an estimate runs. The libraries are imported when it does, if its parent has not done so."""

import contextlib
import os
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path

from legroom.machine import host, worker_environment
from legroom.machine.worker_environment import SIMULATIONS
from legroom.units import GIB

SHARED = "simulations"
MOST_BYTES = 4 * GIB  # beside the libraries; Llama 8B takes 0.1 GiB, a Llama of 2,048 layers 1.2


def run(overrides: list[str], folder: Path, pipe: Connection, advise: bool, seconds: float) -> None:
    """See `estimate_worker.answer`. Cards of the same rules share a simulation, which lies beside the folder.

    The process ends, whatever it does, after so many seconds, and when the app closes its end of the pipe or has ended.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the app's to handle
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)  # ends the process, even where Python's code gets no turn
    threading.Thread(target=_end_with_app, args=(pipe,), daemon=True).start()
    if not advise:
        shared = folder.parent / SHARED
        shared.mkdir(parents=True, exist_ok=True)
        os.environ[SIMULATIONS] = str(shared)
    from legroom.foresight import estimate_worker

    worker_environment.limit_data(most_bytes())
    estimate_worker.answer(overrides, folder, pipe, advise)


def most_bytes() -> int:
    """The memory that one estimate may take beside the libraries: at most half of the machine's."""
    return min(MOST_BYTES, (host.memory_bytes() or MOST_BYTES) // 2)


def _end_with_app(pipe: Connection) -> None:
    """Kill this process when the app, which sends nothing, closes the pipe."""
    with contextlib.suppress(EOFError, OSError):
        pipe.recv()
    os.kill(os.getpid(), signal.SIGKILL)
