"""The fork server: imports the libraries once and forks a worker for each request of its parent."""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import socket

from legroom.jobs import worker
from legroom.training import preload


def serve(descriptor: int, eight_bit: bool) -> None:
    """Import what every job needs, then fork a worker for each request until the parent closes its end. Never returns.

    descriptor: the socket of the requests. eight_bit: import bitsandbytes too, after the first fork, since few jobs
    need it. CUDA and NVML must not be initialized here: a process that has done so cannot fork workers that use them.
    """
    control = socket.socket(fileno=descriptor)
    preload.import_libraries()
    _freeze_memory()
    server = _Server(control)
    while True:
        server.wait_for_event()
        if eight_bit and server.has_forked:
            eight_bit = False
            with contextlib.suppress(Exception):  # a job that needs it imports it again, and its record has the error
                preload.import_libraries(eight_bit=True)
            _freeze_memory()


class _Server:
    """The requests of the parent and the exits of the workers, from one selector.

    SIGCHLD writes a byte to a socket pair (`signal.set_wakeup_fd`), so that an exit wakes the selector too.
    """

    def __init__(self, control: socket.socket):
        self.control = control
        self.has_forked = False
        self.exit_channels: dict[int, socket.socket] = {}  # process id -> where the parent waits for its exit code
        self.wakeup, wakeup_writer = socket.socketpair()
        self.wakeup.setblocking(False)
        wakeup_writer.setblocking(False)
        self._wakeup_writer = wakeup_writer  # keeps the descriptor open
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_writer.fileno())
        self.selector = selectors.DefaultSelector()
        self.selector.register(control, selectors.EVENT_READ)
        self.selector.register(self.wakeup, selectors.EVENT_READ)

    def wait_for_event(self) -> None:
        """Handle what has happened, after waiting for it."""
        for key, _ in self.selector.select():
            if key.fileobj is self.wakeup:
                self._report_exits()
            else:
                self._handle_request()

    def _handle_request(self) -> None:
        message, descriptors, _, _ = socket.recv_fds(self.control, 1, 3)
        if not message:  # the parent has ended; the workers end too, since their pipes have closed
            os._exit(0)
        pipe, log, exit_channel = descriptors
        pid = os.fork()
        if pid == 0:
            self._become_worker(pipe, log, exit_channel)
        os.close(pipe)
        os.close(log)
        self.exit_channels[pid] = socket.socket(fileno=exit_channel)
        self.control.sendall(b"%d\n" % pid)
        self.has_forked = True

    def _become_worker(self, pipe: int, log: int, exit_channel: int) -> None:
        """In the forked process: leave the server's session and descriptors, and run the job. Never returns."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        for stream in (1, 2):
            os.dup2(log, stream)
        others = [channel.fileno() for channel in self.exit_channels.values()]
        for unused in (log, exit_channel, self.control.fileno(), *others):
            os.close(unused)
        worker.entry(pipe)

    def _report_exits(self) -> None:
        """Send the exit code of each worker that has ended to the parent."""
        with contextlib.suppress(BlockingIOError):
            while self.wakeup.recv(4096):
                pass
        while self.exit_channels:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            with self.exit_channels.pop(pid) as channel, contextlib.suppress(OSError):  # the parent may not wait for it
                channel.sendall(b"%d" % os.waitstatus_to_exitcode(status))


def _freeze_memory() -> None:
    """Exempt everything in memory from garbage collection, which would touch, and so copy, every page in a worker."""
    gc.collect()
    gc.freeze()
