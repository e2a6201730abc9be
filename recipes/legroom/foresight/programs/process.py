"""A program in processes of its own, with limits of time, memory and processes; nothing of it is left behind.

The caller's process starts a warden (warden.py), a small process to which the system hands every process whose parent
has ended. The warden forks the process of the program (child.py) and ends all of them. Imports no torch.
"""

import contextlib
import json
import os
import pickle
import selectors
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from legroom.foresight.programs.command import Program

KEPT_OUTPUT = 64 * 1024  # bytes of the end of what a program prints
SOURCE = str(Path(__file__).parents[3])  # the folder that holds this package
WARDEN_CODE = """import sys
sys.path.insert(0, sys.argv[1])
from legroom.foresight.programs.warden import main
sys.exit(main(*sys.argv[2:]))"""
# How a program ended. The first was our doing, and as asked.
STOPPED, ENDED, FAILED, REFUSED = "stopped", "ended", "failed", "refused"
TIMEOUT, MEMORY, PROCESSES, KILLED = "timeout", "memory", "processes", "killed"
BY_US = {STOPPED, REFUSED, TIMEOUT, MEMORY, PROCESSES}
STATUSES = {ENDED, FAILED, KILLED, *BY_US}
SAID = {"status": str, "error": str, "line": str, "exit_code": int, "reached": str, "seconds": float}  # of an end


@dataclass
class Limits:
    """What a program may take. memory_bytes: of all its processes; None: nine tenths of what is free at the start."""

    seconds: float = 600.0
    memory_bytes: int | None = None
    processes: int = 64


@dataclass
class Asked:
    """What the child is to do.

    observer: `module:function`, called as function(options, watch) in the child; it returns a context manager in which
    the script runs, whose value is a function without arguments that returns what was found, as JSON knows it; None:
    nobody observes, and the child imports no torch by itself. options: for the observer. steps: after which the script
    is stopped. offline: Hugging Face's libraries ask no network. packages: that are played (played_packages.py).
    """

    program: Program
    observer: str | None
    options: dict[str, Any] = field(default_factory=dict)
    steps: int | None = None
    limits: Limits = field(default_factory=Limits)
    offline: bool = False
    packages: list[str] = field(default_factory=list)


@dataclass
class Outcome:
    """How a program ended.

    status: one of the names above. found: what the observer returned; None where the program did not come so far.
    error and line: what went wrong and where in the script (file:line). exit_code: the script's own, if it ended by
    itself or by an error of its own. steps, reached: optimizer steps, and the line of the script that was reached last.
    notes: what was held back or assumed, a line each. output: the end of what the script printed.
    """

    status: str = KILLED
    found: dict[str, Any] | None = None
    error: str = ""
    line: str = ""
    exit_code: int | None = None
    steps: int = 0
    reached: str = ""
    notes: list[str] = field(default_factory=list)
    output: str = ""
    seconds: float = 0.0

    @property
    def by_us(self) -> bool:
        """Whether the program was ended by us, and not by itself."""
        return self.status in BY_US


def run(asked: Asked, on_message: Callable[[dict[str, Any]], None] = lambda _: None) -> Outcome:
    """Run a program to its end, or to the end of its limits. Every process that it started has ended when this returns.

    on_message: called with each message as it comes: {"kind": "step", "step", "line", "seconds"} or {"kind": "note",
    "text"}. KeyboardInterrupt (also SIGTERM, as the commands treat it) reaches the program as SIGINT, ends it after two
    seconds, and is raised again.
    """
    limits = asked.limits
    if limits.memory_bytes is None:
        limits = Limits(limits.seconds, int(psutil.virtual_memory().available * 0.9), limits.processes)
    folder = Path(tempfile.mkdtemp(prefix="legroom_program_"))
    try:
        (folder / "asked").write_bytes(pickle.dumps(Asked(**{**vars(asked), "limits": limits})))
        return _Run(folder, on_message).outcome()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Run:
    """One program, from the start of its warden to the outcome."""

    def __init__(self, folder: Path, on_message: Callable[[dict[str, Any]], None]):
        self.folder, self.on_message = folder, on_message
        self.result = Outcome()
        self.printed = bytearray()
        self.pending = b""
        self.ended = False  # the child has said how

    def outcome(self) -> Outcome:
        messages, sent = os.pipe()
        output, printed = os.pipe()
        try:
            warden = subprocess.Popen(
                [sys.executable, "-P", "-c", WARDEN_CODE, SOURCE, str(self.folder), str(sent), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                pass_fds=[sent],
                start_new_session=True,
            )
        finally:
            os.close(sent)
            os.close(printed)
        try:
            self._read(messages, output, warden)
            warden.wait()
        except BaseException:
            warden.terminate()  # it passes SIGINT on, and ends everything
            with contextlib.suppress(subprocess.TimeoutExpired):
                warden.wait(10)
            warden.kill()
            raise
        finally:
            os.close(messages)
            os.close(output)
        return self._concluded(warden.returncode)

    def _read(self, messages: int, output: int, warden: subprocess.Popen) -> None:
        """Until the warden and all that it watches have closed their ends, or the warden was ended by one of them."""
        with selectors.DefaultSelector() as open_ends:
            for descriptor in (messages, output):
                open_ends.register(descriptor, selectors.EVENT_READ)
            while open_ends.get_map():
                ready = open_ends.select(1.0)
                if not ready and warden.poll() is not None:
                    return
                for key, _ in ready:
                    data = os.read(key.fd, 65536)
                    if not data:
                        open_ends.unregister(key.fd)
                    elif key.fd == output:
                        self.printed += data
                        del self.printed[:-KEPT_OUTPUT]
                    else:
                        self._receive(data)

    def _receive(self, data: bytes) -> None:
        *lines, self.pending = (self.pending + data).split(b"\n")
        self.pending = self.pending[-KEPT_OUTPUT:]
        for line in lines:
            with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError):  # a script may write there, too
                self._handle(json.loads(line))

    def _handle(self, message: dict[str, Any]) -> None:
        kind = message.get("kind")
        if kind == "step":
            self.result.steps, self.result.reached = message["step"], message["line"]
        elif kind == "note":
            if message["text"] in self.result.notes:
                return
            self.result.notes.append(message["text"])
        elif kind in ("end", "warden") and message["status"] in STATUSES:  # the child's own, and the warden's account
            known = self.ended and not message.get("wins")
            for name in ("seconds",) if known else SAID:
                if isinstance(message.get(name), SAID[name]):
                    setattr(self.result, name, message[name])
            self.ended = True
            return
        self.on_message(message)

    def _concluded(self, code: int) -> Outcome:
        result = self.result
        result.output = bytes(self.printed).decode(errors="replace")
        found = self.folder / "found.json"
        if found.exists():
            with contextlib.suppress(ValueError):
                result.found = json.loads(found.read_text())
        if code and not result.error:
            result.error = f"the process that watches the program ended with code {code}."
        return result
