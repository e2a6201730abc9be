"""A worker that is started before its job is known, and imports the libraries while the parent composes the job.

`PreloadedWorker` is the parent's side, `wait_for_job` the worker's. The parent creates it before anything else, so this
module imports little at the top.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from typing import IO

from legroom.machine import interpreter

WORKER_CODE = "import sys; from legroom.jobs.preloaded_worker import wait_for_job; wait_for_job(int(sys.argv[1]))"
SET_BY_COMMAND = {"HYDRA_FULL_ERROR"}  # variables of the parent's own that no worker reads

MIN_CORES = 4


def is_worthwhile(argv: list[str]) -> bool:
    """Whether a command line runs one job (flags make it a sweep, or print something) and there are cores to spare.

    On two cores the worker's imports would slow down the parent, and with it every refusal.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores >= MIN_CORES and not any(argument.startswith("-") for argument in argv)


class PreloadedWorker:
    """Starts a job's first worker at once, since it runs already, and any other in a new interpreter."""

    def __init__(self):
        self._control, worker_end = socket.socketpair()
        self._inherited = _inherited()
        self._waiting = True
        with worker_end, tempfile.TemporaryFile() as output:
            self._process = interpreter.start_python(WORKER_CODE, worker_end, stdout=output, stderr=output)

    def start_worker(
        self, pipe: socket.socket, log: IO[bytes], timeout_seconds: float | None = None
    ) -> subprocess.Popen:
        """A worker that receives its job from the pipe and prints to the log."""
        from legroom.jobs import launch

        # A variable or a folder that Hydra has set for the job (hydra.job.env_set, chdir) must be there before imports.
        if self._waiting and self._inherited == _inherited():
            with contextlib.suppress(OSError):  # it has died
                socket.send_fds(self._control, [b"j"], [pipe.fileno(), log.fileno()])
                self._waiting = False
                return self._process
        self.close()
        return launch.new_worker(pipe, log)

    def close(self) -> None:
        """End the worker if it has no job."""
        if self._waiting:
            self._waiting = False
            self._process.kill()


def _inherited() -> tuple[dict[str, str], str]:
    """What a worker inherits: the environment and the working directory."""
    return {name: value for name, value in os.environ.items() if name not in SET_BY_COMMAND}, os.getcwd()


def wait_for_job(descriptor: int) -> None:
    """The worker: import the libraries, then receive the job's pipe and log, and run the job. Never returns.

    descriptor: the socket on which they come. The worker ends when the parent does.
    """
    control = socket.socket(fileno=descriptor)
    threading.Thread(target=_end_with_parent, args=(control,), daemon=True).start()
    from legroom.jobs import worker
    from legroom.machine import worker_environment
    from legroom.training import preload

    worker_environment.prepare_imports()
    with contextlib.suppress(Exception):  # the job imports them again, and its record then has the error
        preload.import_libraries()
    message, descriptors, _, _ = socket.recv_fds(control, 1, 2)
    if not message:
        os._exit(0)
    pipe, log = descriptors
    _move_output(log)
    worker.entry(pipe)


def _end_with_parent(control: socket.socket) -> None:
    """Kill this process group when the parent closes its end. POLLHUP is reported without being asked for."""
    poll = select.poll()
    poll.register(control, 0)
    poll.poll()
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _move_output(log: int) -> None:
    """Copy what was printed so far to the log, and print there from now on."""
    sys.stdout.flush()
    with open(os.dup(1), "rb") as output:
        output.seek(0)
        os.write(log, output.read())
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
