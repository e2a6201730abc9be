"""The fork server: imports the libraries once and forks a worker for each request of its parent."""

import gc
import os
import signal
import socket
from typing import NoReturn

from legroom.jobs import worker
from legroom.training import preload


def serve(control_descriptor: int) -> None:
    """Import what every job needs, then fork a worker for each request until the parent closes its end. Never returns.

    control_descriptor: the socket of the requests. What few jobs need (bitsandbytes) they import themselves: here it
    would take a core from the job that is measured meanwhile. CUDA and NVML must not be initialized here: a process
    that has done so cannot fork workers that use them.
    """
    control = socket.socket(fileno=control_descriptor)
    preload.import_libraries()
    import legroom.jobs.training_run  # noqa: F401 (a tenth of a short job's time; after what has to come first)

    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # what becomes of the processes that wait for workers
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 3)
        if not message:  # the parent has ended; the workers end too, since their pipes have closed
            os._exit(0)
        if os.fork() == 0:
            _fork_worker(control, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _fork_worker(control: socket.socket, pipe: int, log: int, exit_channel: int) -> NoReturn:
    """In a process for each worker: fork it, send the parent its id, and its exit code once it has ended.

    So the exit code is known whatever becomes of the server meanwhile.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = None
    try:
        pid = os.fork()
        if pid == 0:
            _become_worker(control, pipe, log, exit_channel)
        control.sendall(b"%d\n" % pid)
        for unused in (control.detach(), pipe, log):  # their other ends must see when the server or the worker ends
            os.close(unused)
        _, status = os.waitpid(pid, 0)
        os.write(exit_channel, b"%d" % os.waitstatus_to_exitcode(status))
    finally:
        if pid is None:  # no room for the worker: the parent, which waits for its id, hears that the server has ended
            os.kill(os.getppid(), signal.SIGKILL)
        os._exit(1)


def _become_worker(control: socket.socket, pipe: int, log: int, exit_channel: int) -> None:
    """In the forked process: leave the server's session and descriptors, and run the job. Never returns."""
    os.setsid()
    for stream in (1, 2):
        os.dup2(log, stream)
    for unused in (log, exit_channel, control.detach()):
        os.close(unused)
    worker.entry(pipe)
