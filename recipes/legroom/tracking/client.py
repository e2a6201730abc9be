"""The tracker's process, seen from the parent.

The tracker runs in a process of its own, which reads the worker's `steps.jsonl` (`process.py`). A slow network or a
tracker's background service therefore delays neither the job nor Ctrl-C: the process can be ended at any time.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from legroom.machine import interpreter
from legroom.records import run_folder
from legroom.records.messages import Message, StepsDone
from legroom.records.record import Record
from legroom.tracking.interface import Job, Result, flat
from legroom.tracking.process import end_children, reason, stamp

CODE = "import sys; from legroom.tracking.process import serve; serve(int(sys.argv[1]))"
STOP_SECONDS = 0.3  # what the tracker gets after Ctrl-C, which must be over within a second


class Tracker:
    """One job's tracker; this one tracks nothing.

    line: after `finish`, where the run can be seen, for the screen; "" where it cannot.
    """

    line = ""
    takes_page = False  # whether `finish` wants the run's page

    def on_message(self, message: Message) -> None:
        """Handle a message of the worker. Never waits."""

    def finish(self, outcome: Record, page: Path | None = None) -> list[str]:
        """The job is over. Returns warnings, a line each; raises nothing but KeyboardInterrupt. page: as one file."""
        return []


class ProcessTracker(Tracker):
    """A run at a tracker that has a module `<option>_run`."""

    def __init__(self, job: Job):
        self.job, self.seconds = job, job.settings["finish_seconds"]
        module = importlib.import_module(f"legroom.tracking.{job.tracker}_run")
        self.label, self.takes_page = module.LABEL, module.TAKES_PAGE
        self.where, self.local, self.send_later = "", True, ""  # what the process says of the run once it has begun
        self.troubles: list[str] = []
        self.process: TrackerProcess | None = None
        steps = Path(job.folder, run_folder.STEPS_FILE)
        with self._troubled():
            waiting = _idle.pop() if _idle else None
            self.process = waiting if waiting and waiting.process.poll() is None else TrackerProcess()
            self.process.tell(job=asdict(job), steps=str(steps), earlier=stamp(steps))

    def on_message(self, message: Message) -> None:
        if isinstance(message, StepsDone) and self.process:
            self.process.tell_of_steps()

    def finish(self, outcome: Record, page: Path | None = None) -> list[str]:
        exit_code = 0 if outcome.status in ("ok", "preempted") else 1
        result = Result(summary(outcome), exit_code, page=None if page is None else str(page.absolute()))
        return self.end(result, outcome.status == "interrupted")

    def end(self, result: Result, at_once: bool = False) -> list[str]:
        """Send the result, and wait until the tracker has everything, as long as the option says."""
        process, self.process, done = self.process, None, False
        try:
            with self._troubled():
                if process:
                    process.tell(result=asdict(result))
                    done = self._listen(process, STOP_SECONDS if at_once else self.seconds)
        finally:  # Ctrl-C comes through here, too
            if process and done and self.job.group:  # the sweep's next job need not import the package again
                _idle.append(process)
            elif process:
                process.end()
        return self._warnings()

    def _listen(self, process: TrackerProcess, limit: float) -> bool:
        """Whether the tracker has it all within the limit, in seconds."""
        try:
            for answer in process.answers(time.monotonic() + limit):
                if "line" in answer:
                    self.where, self.local, self.send_later = answer["line"], answer["local"], answer["send_later"]
                self.troubles += answer.get("troubles", [])
                if "done" in answer:
                    return True
        except TimeoutError:
            self.troubles.append(f"not done {limit:g} seconds after the job")
        return False

    @contextlib.contextmanager
    def _troubled(self) -> Iterator[None]:
        """A failure of the tracker's process becomes a warning instead of a failure of the job."""
        try:
            yield
        except (OSError, ValueError) as error:
            self.troubles.append(f"its process has failed ({reason(error)})")

    def _warnings(self) -> list[str]:
        """Sets the line for the screen; returns at most one warning."""
        in_warning = bool(self.troubles) and bool(self.send_later) and self.local
        self.line = "" if in_warning or (self.local and self.job.group) else self.where
        if not self.troubles:
            return []
        rest = f"To send it later: {self.send_later}" if self.send_later else "The run's own files hold everything."
        return [f"{self.label}: {'; '.join(dict.fromkeys(self.troubles))}. {rest}"]


def summary(outcome: Record) -> dict[str, Any]:
    """What a job came to, flat: status, and memory/..., speed/..., evaluation/..., training/... and error/..."""
    parts = {key: getattr(outcome, key) for key in ("training", "evaluation", "speed", "memory", "error")}
    values = flat({key: asdict(part) for key, part in parts.items() if part is not None})
    return {"status": outcome.status} | {key: value for key, value in values.items() if not isinstance(value, list)}


def close() -> None:
    """End the process that waits for a sweep's next job. Without this call it ends when the parent does."""
    while _idle:
        _idle.pop().end()


class TrackerProcess:
    """The process in which a tracker runs. Messages are JSON, a line each."""

    def __init__(self):
        self.channel, theirs = socket.socketpair()
        with theirs:
            self.process = interpreter.start_python(CODE, theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def tell(self, **message: Any) -> None:
        """Raises OSError when the process is gone, or does not listen."""
        self.channel.settimeout(2)
        self.channel.sendall(json.dumps(message, default=str).encode() + b"\n")

    def tell_of_steps(self) -> None:
        """There is something new in steps.jsonl. Lost without harm where the process is busy or gone."""
        self.channel.settimeout(0)
        with contextlib.suppress(OSError):
            self.channel.send(b"{}\n")

    def answers(self, deadline: float) -> Iterator[dict[str, Any]]:
        """Raises TimeoutError at the deadline (time.monotonic), ConnectionError when the process is gone."""
        text = b""
        while True:
            self.channel.settimeout(max(deadline - time.monotonic(), 0.001))
            data = self.channel.recv(65536)
            if not data:
                raise ConnectionError("ended early")
            *lines, text = (text + data).split(b"\n")
            yield from map(json.loads, lines)

    def end(self) -> None:
        """End the process and its children. What the tracker has written to disk stays."""
        self.channel.close()  # it ends itself then, and the tracker's service with it
        try:
            self.process.wait(1)
        except subprocess.TimeoutExpired:
            end_children(self.process.pid)
            self.process.kill()
            self.process.wait()


_idle: list[TrackerProcess] = []  # at most one in a sweep that runs its jobs one after another
