"""The parent's side of the fork server: starts the server, asks it for workers, and ends it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from typing import IO

from recipes.machine import host, interpreter

FORK_SERVER_CODE = "import sys; from recipes.jobs.fork_server import serve; serve(int(sys.argv[1]), {eight_bit})"


class ForkServer:
    """A process that has imported the libraries and forks a worker for each job.

    Its workers end with it, and it ends with this process.
    """

    def __init__(self):
        self._control, server_end = socket.socketpair()
        with server_end:
            # Importing bitsandbytes initializes CUDA, which does not survive a fork.
            code = FORK_SERVER_CODE.format(eight_bit=not host.gpus() and host.has("bitsandbytes"))
            self._process = interpreter.start_python(
                code, server_end, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        self._replies = self._control.makefile("rb")
        self._lock = threading.Lock()  # replies come in the order of the requests
        self.pid = self._process.pid

    def start_worker(self, pipe: socket.socket, log: IO[bytes]) -> ForkedWorker:
        """Fork a worker that holds the pipe and prints to the log."""
        exit_channel, server_end = socket.socketpair()
        with server_end, self._lock:
            socket.send_fds(self._control, [b"f"], [pipe.fileno(), log.fileno(), server_end.fileno()])
            return ForkedWorker(int(self._replies.readline()), exit_channel)

    def alive(self) -> bool:
        """Whether the server still runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the server, and with it the workers that still run."""
        self._process.kill()  # while it imports, it does not read its socket
        self._replies.close()
        self._control.close()
        self._process.wait()


class ForkedWorker:
    """A worker that the fork server forked, with the part of `subprocess.Popen` that its supervisor uses.

    exit_channel: the socket on which the server sends the worker's exit code.
    """

    def __init__(self, pid: int, exit_channel: socket.socket):
        self.pid = pid
        self.returncode: int | None = None
        self._exit_channel = exit_channel

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal. Raises TimeoutError."""
        if self.returncode is None:
            self._exit_channel.settimeout(timeout)
            text = self._exit_channel.recv(16)
            self.returncode = (
                int(text) if text else -signal.SIGKILL
            )  # no code: the server ended, and the worker with it
            self._exit_channel.close()
        return self.returncode

    def poll(self) -> int | None:
        """The exit code, or None while the worker runs."""
        try:
            return self.wait(0)
        except (BlockingIOError, TimeoutError):
            return None

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless the worker has exited."""
        if self.poll() is None:
            os.kill(self.pid, sig)
