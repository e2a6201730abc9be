"""The fork server, seen from the process that asks it for workers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading

from recipes.machine import host, interpreter

FORK_SERVER_CODE = "import sys; from recipes.jobs.fork_server import serve; serve(int(sys.argv[1]), {eight_bit})"


class ForkServer:
    """A process that forks workers. Its children end with it, and it ends with us."""

    def __init__(self):
        self._control, theirs = socket.socketpair()
        with theirs:
            # bitsandbytes opens CUDA when it is imported, and CUDA does not survive a fork.
            code = FORK_SERVER_CODE.format(eight_bit=not host.gpus() and host.has("bitsandbytes"))
            self._process = interpreter.start_python(code, theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._replies = self._control.makefile("rb")
        self._asking = threading.Lock()  # replies come in the order of the questions

    def fork(self, pipe: socket.socket, log) -> ForkedWorker:
        """A child that holds the pipe and prints to the log."""
        status, theirs = socket.socketpair()
        with theirs, self._asking:
            socket.send_fds(self._control, [b"f"], [pipe.fileno(), log.fileno(), theirs.fileno()])
            return ForkedWorker(int(self._replies.readline()), status)

    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it; workers that still run go too."""
        self._process.kill()  # it may still be importing, and listens to nothing then
        self._replies.close()
        self._control.close()
        self._process.wait()


class ForkedWorker:
    """A forked worker, with as much of Popen's interface as its supervisor uses."""

    def __init__(self, pid: int, status: socket.socket):
        self.pid, self.returncode, self._status = pid, None, status

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code (negative: the signal that ended it). Raises TimeoutError."""
        if self.returncode is None:
            self._status.settimeout(timeout)
            text = self._status.recv(16)
            self.returncode = int(text) if text else -signal.SIGKILL  # the fork server is gone, and it with it
            self._status.close()
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except (BlockingIOError, TimeoutError):
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)
