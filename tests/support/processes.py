"""Processes that a test starts: they end with it, however it ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable

import psutil

PR_SET_PDEATHSIG = 1  # linux/prctl.h: the signal that a process gets when its parent has ended


def dies_with_parent() -> Callable[[], None] | None:
    """For `preexec_fn` of Popen: the process is killed when this one ends, also by SIGKILL. Linux only.

    Its own children are not: they have to notice that it is gone, as the workers of a command and the ranks of a
    launcher do.
    """
    if not sys.platform.startswith("linux"):
        return None
    parent, libc = os.getpid(), ctypes.CDLL(None)  # loaded here: between fork and exec little may be done

    def before_exec() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the call
            os._exit(1)

    return before_exec


def children_with(process_id: int, text: str, *, recursive: bool = False) -> list[psutil.Process]:
    """The children that have a text in their command line. One that ends while it is asked has none."""
    found = []
    for child in psutil.Process(process_id).children(recursive=recursive):
        with contextlib.suppress(psutil.Error):
            if text in " ".join(child.cmdline()):
                found.append(child)
    return found


def signal_all(process_id: int, number: int) -> None:
    """Send a signal to a process and all below it, as SLURM does to a job."""
    process = psutil.Process(process_id)
    for each in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            each.send_signal(number)
