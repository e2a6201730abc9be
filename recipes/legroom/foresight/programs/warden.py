"""The process that watches a program's processes: it forks the program, holds its limits, and ends all that is left.

On Linux it is the subreaper of all of them (prctl(2)): a process whose parent has ended becomes its child, so that none
escapes by forking twice or by a session of its own. Imports no torch.
"""

import contextlib
import ctypes
import faulthandler
import json
import os
import pickle
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from legroom import units
from legroom.foresight import places
from legroom.foresight.programs import process
from legroom.units import GIB

POLL_SECONDS = 0.1
GRACE_SECONDS = 2.0  # between SIGINT and SIGKILL
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
LARGEST_FILE = 4 * GIB


def main(folder: str, descriptor: str, caller: str) -> int:
    """Run what `folder/asked` says. Returns 0; how the program ended is a message on the descriptor."""
    asked: process.Asked = pickle.loads(Path(folder, "asked").read_bytes())
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    start = time.monotonic()
    child = os.fork()
    if not child:
        _become_the_program(folder, int(descriptor), asked)
    seen = _Warden(Path(folder), child, asked, int(caller)).watch()
    message = {"kind": "warden", "seconds": time.monotonic() - start} | seen
    with contextlib.suppress(BrokenPipeError):
        os.write(int(descriptor), json.dumps(message).encode() + b"\n")
    return 0


def _become_the_program(folder: str, descriptor: int, asked: process.Asked) -> None:
    """In the forked process: limits, a session of its own, and the program. Does not return."""
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # For one process, so that an allocation between two looks of the warden does not take the machine. Memory that is
    # mapped and never touched counts here, and does not for the warden.
    data = (asked.limits.memory_bytes or 0) * 2 + 4 * GIB
    for limit, value in ((resource.RLIMIT_FSIZE, LARGEST_FILE), (resource.RLIMIT_DATA, data)):
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (value if hard < 0 else min(value, hard), hard))
    dump = open(Path(folder, "stack"), "w")  # noqa: SIM115  # open as long as the process lives
    faulthandler.register(signal.SIGUSR2, file=dump, all_threads=False)
    faulthandler.enable(dump, all_threads=False)  # after a SIGSEGV the line is there
    code = 1
    try:
        from legroom.foresight.programs import child

        code = child.main(Path(folder), descriptor, asked)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # threads and exit handlers of the script's libraries have nothing to do any more


class _Warden:
    """Watches the processes below this one."""

    def __init__(self, folder: Path, child: int, asked: process.Asked, caller: int):
        self.folder, self.child, self.caller = folder, child, caller
        self.limits, self.target = asked.limits, asked.program.target
        self.me = psutil.Process()
        self.interrupted_at: float | None = None
        signal.signal(signal.SIGTERM, self._interrupt)
        signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, *_: Any) -> None:
        if self.interrupted_at is None:
            self.interrupted_at = time.monotonic()
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child, signal.SIGINT)

    def watch(self) -> dict[str, Any]:
        """Until the program has ended or a limit is reached. Returns what the message says."""
        deadline = time.monotonic() + self.limits.seconds
        seen: dict[str, Any] | None = None
        while seen is None:
            time.sleep(POLL_SECONDS)
            seen = self._ended() or self._beyond(deadline)
        if seen["wins"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child, signal.SIGUSR2)
                time.sleep(0.2)
        with contextlib.suppress(OSError):
            seen["reached"] = places.own_line_of_dump((self.folder / "stack").read_text(), self.target) or None
        self._end_all()
        return seen

    def _ended(self) -> dict[str, Any] | None:
        """How the program's first process ended; others are reaped."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return {"wins": False, "status": process.KILLED}
            if not pid:
                return None
            if pid == self.child:
                code = os.waitstatus_to_exitcode(status)
                if code >= 0:
                    return {"wins": False, "status": process.ENDED, "exit_code": code}
                name = signal.Signals(-code).name
                return {"wins": False, "status": process.KILLED, "error": f"the program was ended by {name}."}

    def _beyond(self, deadline: float) -> dict[str, Any] | None:
        """Which limit was reached."""
        now, limits = time.monotonic(), self.limits
        if self.interrupted_at is not None and now > self.interrupted_at + GRACE_SECONDS:
            return {"wins": False, "status": process.KILLED, "error": "interrupted."}
        if os.getppid() != self.caller:  # whoever asked is gone
            return {"wins": False, "status": process.KILLED, "error": "the command was ended."}
        if now > deadline:
            return {"wins": True, "status": process.TIMEOUT, "error": f"the limit of {limits.seconds:g} s was reached."}
        below = self.me.children(recursive=True)
        if len(below) > limits.processes:
            text = f"the script has started more than {limits.processes} processes."
            return {"wins": True, "status": process.PROCESSES, "error": text}
        if limits.memory_bytes is not None and sum(map(_private_bytes, below)) > limits.memory_bytes:
            text = f"the script took more than the limit of {units.size(limits.memory_bytes)} of this machine's memory."
            return {"wins": True, "status": process.MEMORY, "error": text}
        return None

    def _end_all(self) -> None:
        """Kill until nothing is left: what is killed may have forked a moment before."""
        end = time.monotonic() + 10
        while time.monotonic() < end:
            below = self.me.children(recursive=True)
            for one in below:
                with contextlib.suppress(psutil.Error):
                    one.suspend()
            for one in below:
                with contextlib.suppress(psutil.Error):
                    one.kill()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
                time.sleep(0.01)
                continue
            return


def _private_bytes(one: psutil.Process) -> int:
    """Memory of a process without files and memory that it shares by name; pages shared by a fork count in each."""
    try:
        memory = one.memory_info()
    except psutil.Error:
        return 0
    return memory.rss - getattr(memory, "shared", 0)
