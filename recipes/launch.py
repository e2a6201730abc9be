"""Start a job: a process for each rank, in a session of its own, with a pipe between it and its parent.

One run starts a new interpreter. Several runs share a nursery: a process that has imported the
libraries once and forks a child for each job, so that a short job does not pay seconds of imports.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from recipes.records import record
from recipes.machine import host
from recipes.ranks import rank_info
from recipes.machine import interpreter
from recipes.records import run_folder

CHILD = "import sys; from recipes.worker import entry; entry(int(sys.argv[1]))"
NURSERY = "import sys; from recipes.launch import tend; tend(int(sys.argv[1]), {eight_bit})"


@dataclass
class Job:
    """One run: its record so far (nothing but configuration and environment), its folder, and its place among ranks.

    folder: None on a rank other than 0 that a launcher started; rank 0 tells it.
    """

    record: record.Record
    folder: Path | None
    place: rank_info.RankInfo = rank_info.RankInfo()


@dataclass
class Running:
    """A worker at work. process: has pid, returncode, poll(), wait(timeout) and send_signal(), as Popen."""

    process: Any
    pipe: Connection
    place: rank_info.RankInfo


def start(job: Job, nursery: Nursery | None = None) -> list[Running]:
    """Start the workers: all ranks of the job, or this process's own where a launcher started the ranks.

    They get the job through a pipe, and end when the pipe's other end closes.
    """
    if job.place.launched:
        return [_start(job, nursery)]
    count = job.record.config["parallelism"]["num_processes"]
    alone = count == 1 and job.record.config["parallelism"]["name"] in ("single", "dp")
    if alone or job.record.recipe == "estimate":  # which plays one rank of many in one process
        return [_start(job, nursery)]
    started = []
    with socket.create_server((rank_info.RankInfo.address, 0)) as listener:
        port = listener.getsockname()[1]
        try:
            for rank in range(count):
                place = rank_info.RankInfo(rank, count, rank, count, port=port)
                started.append(_start(Job(job.record, job.folder, place), nursery, listener))
        except BaseException:
            for running in started:
                running.pipe.close()  # which ends it
            raise
    return started


def _start(job: Job, nursery: Nursery | None, listener: socket.socket | None = None) -> Running:
    ours, theirs = socket.socketpair()
    with theirs, log_of(job) as log:
        if nursery is not None:
            process = nursery.fork(theirs, log)
        else:
            process = interpreter.start_python(CHILD, theirs, stdout=log, stderr=log)
    pipe = Connection(ours.detach())
    pipe.send_bytes(pickle.dumps(job))
    if listener is not None and job.place.main:
        reduction.send_handle(pipe, listener.fileno(), process.pid)
    return Running(process, pipe, job.place)


def log_of(job: Job):
    """The open file to which a rank's libraries print."""
    if job.folder is None:  # until rank 0 has told its folder
        return tempfile.TemporaryFile()
    return open(job.folder / run_folder.log_name(job.place.rank), "wb")


# --- the nursery: the parent's side ----------------------------------------------------------------


class Nursery:
    """A process that forks workers. Its children end with it, and it ends with us."""

    def __init__(self):
        self._control, theirs = socket.socketpair()
        with theirs:
            # bitsandbytes opens CUDA when it is imported, and CUDA does not survive a fork.
            code = NURSERY.format(eight_bit=not host.gpus() and host.has("bitsandbytes"))
            self._process = interpreter.start_python(code, theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._replies = self._control.makefile("rb")
        self._asking = threading.Lock()  # replies come in the order of the questions

    def fork(self, pipe: socket.socket, log) -> Child:
        """A child that holds the pipe and prints to the log."""
        status, theirs = socket.socketpair()
        with theirs:
            with self._asking:
                socket.send_fds(self._control, [b"f"], [pipe.fileno(), log.fileno(), theirs.fileno()])
                return Child(int(self._replies.readline()), status)

    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it; workers that still run go too."""
        self._process.kill()  # it may still be importing, and listens to nothing then
        self._replies.close()
        self._control.close()
        self._process.wait()


class Child:
    """A forked worker, with as much of Popen's interface as its supervisor uses."""

    def __init__(self, pid: int, status: socket.socket):
        self.pid, self.returncode, self._status = pid, None, status

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code (negative: the signal that ended it). Raises TimeoutError."""
        if self.returncode is None:
            self._status.settimeout(timeout)
            text = self._status.recv(16)
            self.returncode = int(text) if text else -signal.SIGKILL  # the nursery is gone, and it with it
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


# --- the nursery's own side ------------------------------------------------------------------------


def tend(descriptor: int, eight_bit: bool) -> None:
    """Import what every job needs, then fork one child for each request until the parent is gone.

    CUDA and NVML must not be touched here: a process that has opened them cannot fork workers that use them.
    """
    import selectors

    from recipes import worker
    from recipes.training import preload

    control = socket.socket(fileno=descriptor)
    preload.import_libraries()
    _share()
    woken, waker = socket.socketpair()
    woken.setblocking(False)
    waker.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno())
    children: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is woken:
                    _reap(woken, children)
                    continue
                message, descriptors, _, _ = socket.recv_fds(control, 1, 3)
                if not message:  # the parent is gone: so is every worker, for its pipe has closed too
                    os._exit(0)
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    pipe, log, status = descriptors
                    os.setsid()
                    for stream in (1, 2):
                        os.dup2(log, stream)
                    for unused in (log, status, control.fileno(), *(s.fileno() for s in children.values())):
                        os.close(unused)
                    worker.entry(pipe)
                for given in descriptors[:2]:
                    os.close(given)
                children[pid] = socket.socket(fileno=descriptors[2])
                control.sendall(b"%d\n" % pid)
                if eight_bit:  # few jobs need it, and the first need not wait for it
                    eight_bit = False
                    preload.import_libraries(eight_bit=True)
                    _share()


def _share() -> None:
    """Leave what is in memory to the children: a collection there would touch, and so copy, every page of it."""
    gc.collect()
    gc.freeze()


def _reap(woken: socket.socket, children: dict[int, socket.socket]) -> None:
    """Tell of each child that has ended how it did."""
    try:
        while woken.recv(4096):
            pass
    except BlockingIOError:
        pass
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        channel = children.pop(pid)
        try:
            channel.sendall(b"%d" % os.waitstatus_to_exitcode(status))
        except OSError:
            pass  # nobody asks any more
        channel.close()
