"""The parent's side of the fork server: starts the server, asks it for workers, and ends it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
import threading
from typing import IO

from legroom.machine import interpreter
from legroom.records.printable import printable

FORK_SERVER_CODE = "import sys; from legroom.jobs.fork_server import serve; serve(int(sys.argv[1]))"


class ServerEnded(Exception):
    """A fork server has ended. The message says how."""


class ForkServer:
    """A process that has imported the libraries and forks a worker for each job.

    Its workers end with this process, and so does the server.
    """

    def __init__(self):
        self._control, server_end = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the server may write)
        with server_end:
            self.process = interpreter.start_python(
                FORK_SERVER_CODE, server_end, stdout=subprocess.DEVNULL, stderr=self._errors
            )
        self._lock = threading.Lock()  # replies come in the order of the requests
        self.pid = self.process.pid

    def start_worker(self, pipe: socket.socket, log: IO[bytes], timeout_seconds: float | None = None) -> ForkedWorker:
        """Fork a worker that holds the pipe and prints to the log.

        Raises ServerEnded if the server has ended, and TimeoutError if it does not answer in time (None: no
        limit); it is ended then.
        """
        exit_channel, server_end = socket.socketpair()
        with server_end, self._lock:
            try:
                self._control.settimeout(timeout_seconds)
                socket.send_fds(self._control, [b"f"], [pipe.fileno(), log.fileno(), server_end.fileno()])
                return ForkedWorker(self._reply(), exit_channel)
            except TimeoutError:
                self.process.kill()
                raise
            except OSError as error:
                raise ServerEnded(self.cause_of_end()) from error
            except BaseException:  # Ctrl-C: the reply to this request would be taken for that to the next
                self.process.kill()
                raise

    def _reply(self) -> int:
        """The process id that the server sends. Raises OSError if it has ended."""
        text = b""
        while not text.endswith(b"\n"):
            received = self._control.recv(16)
            if not received:
                raise ConnectionResetError("the fork server has ended")
            text += received
        return int(text)

    def cause_of_end(self) -> str:
        """How the server ended: its exit code or signal, and the last line that it printed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1)  # its socket closes a moment before
        code = self.process.poll()
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 4096))
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        text = "not known" if code is None else interpreter.exit_text(code)
        if lines:
            text += f": {lines[-1].strip()}"
        return printable(text)

    def close(self) -> None:
        """End the server, and with it the workers that still run."""
        self.process.kill()  # while it imports, it does not read its socket
        self._control.close()
        self.process.wait()
        self._errors.close()


class ForkedWorker:
    """A worker that the fork server forked, with the part of `subprocess.Popen` that its supervisor uses.

    exit_channel: the socket on which its exit code comes, from the process that waits for it.
    """

    def __init__(self, pid: int, exit_channel: socket.socket):
        self.pid = pid
        self.returncode: int | None = None
        self._exit_channel = exit_channel

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal, or interpreter.UNWATCHED. Raises TimeoutError."""
        if self.returncode is None:
            self._exit_channel.settimeout(timeout)
            self.returncode = int(self._exit_channel.recv(16) or interpreter.UNWATCHED)
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
