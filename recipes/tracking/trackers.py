"""The menu `tracker`: sends the figures of a run to Weights & Biases (W&B).

W&B runs in a separate process, which reads the worker's `steps.jsonl`. A slow network or W&B's background service
therefore delays neither the job nor Ctrl-C: the process can be ended at any time.

This module runs in the parent; `wandb_process` runs in that process.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from recipes.machine import interpreter
from recipes.records import run_folder
from recipes.records.messages import Message, StepsDone
from recipes.records.record import Record
from recipes.tracking.wandb_process import end_children, reason, stamp

HELPER = "import sys; from recipes.tracking.wandb_process import serve; serve(int(sys.argv[1]))"
STOP_SECONDS = 0.3  # what W&B gets after Ctrl-C, which must be over within a second


class Tracker:
    """One job's tracker; this one tracks nothing.

    line: after `finish`, where the run can be seen, for the screen; "" where it cannot.
    """

    line = ""

    def on_message(self, message: Message) -> None:
        """Handle a message of the worker. Never waits."""

    def finish(self, outcome: Record) -> list[str]:
        """The job is over. Returns warnings, a line each; raises nothing but KeyboardInterrupt."""
        return []


def open_tracker(cfg, outcome: Record, folder: Path, group: str | None = None) -> Tracker:
    """The tracker of a job, to be opened before its worker starts. group: its sweep's name, None for a single run."""
    if not _wanted(cfg):
        return Tracker()
    overrides = [override for override in outcome.overrides if not override.startswith("tracker")]
    config = outcome.config | {
        "config_key": outcome.config_key,
        "overrides": outcome.overrides,
        "environment": outcome.environment,
    }
    name = os.environ.get("WANDB_NAME") or " ".join(overrides) or outcome.config_key
    return Wandb(cfg.tracker, folder, group, name=name[:128], config=config, job_type="run")


def log_table(cfg, group: str, folder: Path, table: Path) -> list[str]:
    """Send a sweep's table (a CSV file) as the W&B run 'sweep <group>'; returns warnings, a line each.

    folder: the sweep's, where W&B's files of this run go.
    """
    if not _wanted(cfg):
        return []
    tracker = Wandb(cfg.tracker, folder, group, name=f"sweep {group}"[:128], config={}, job_type="sweep")
    return tracker.end(tracker.seconds, summary={}, exit_code=0, table=str(Path(table).absolute()))


def close() -> None:
    """End the process that waits for a sweep's next job. Without this call it ends when we do."""
    while _idle:
        _idle.pop().end()


def _wanted(cfg) -> bool:
    return cfg.tracker.name == "wandb" and (cfg.tracker.mode or os.environ.get("WANDB_MODE")) != "disabled"


class Wandb(Tracker):
    """A run at W&B, seen from the parent. tracker: the configuration's node; init: what `wandb.init` takes."""

    def __init__(self, tracker, folder: Path, group: str | None, **init):
        self.seconds, self.group = tracker.finish_seconds, group
        self.place = self.url = None  # W&B's own folder and page of this run, once it is open
        self.troubles: list[str] = []
        self.helper: Helper | None = None
        steps = Path(folder, run_folder.STEPS_FILE).absolute()
        init |= {
            "dir": str(Path(folder).absolute()),
            "project": tracker.project,
            "entity": tracker.entity,
            "mode": tracker.mode,
            "group": group[:128] if group else None,
        }
        with self._troubled():
            waiting = _idle.pop() if _idle else None
            self.helper = waiting if waiting and waiting.process.poll() is None else Helper()
            self.helper.tell(init=init, steps=str(steps), earlier=stamp(steps), seconds=self.seconds)

    def on_message(self, message: Message) -> None:
        if isinstance(message, StepsDone) and self.helper:
            self.helper.nudge()

    def finish(self, outcome: Record) -> list[str]:
        return self.end(
            STOP_SECONDS if outcome.status == "interrupted" else self.seconds,
            summary=summary(outcome),
            exit_code=0 if outcome.status in ("ok", "preempted") else 1,
        )

    def end(self, limit: float, **last) -> list[str]:
        """Send the last message, and wait up to `limit` seconds until W&B has everything."""
        helper, self.helper, done = self.helper, None, False
        try:
            with self._troubled():
                if helper:
                    helper.tell(last=last)
                    done = self._listen(helper, limit)
        finally:  # Ctrl-C comes through here, too
            if helper and done and self.group:  # the sweep's next job need not import wandb again
                _idle.append(helper)
            elif helper:
                helper.end()
        return self._warnings()

    def _listen(self, helper: Helper, limit: float) -> bool:
        """Whether W&B has it all within the limit, in seconds."""
        try:
            for answer in helper.answers(time.monotonic() + limit):
                self.place, self.url = answer.get("place", self.place), answer.get("url", self.url)
                self.troubles += answer.get("troubles", [])
                if "done" in answer:
                    return True
        except TimeoutError:
            self.troubles.append(f"not done {limit:g} seconds after the job")
        return False

    @contextlib.contextmanager
    def _troubled(self):
        """A failure of the W&B process becomes a warning instead of a failure of the job."""
        try:
            yield
        except (OSError, ValueError) as error:
            self.troubles.append(f"its process has failed ({reason(error)})")

    def _warnings(self) -> list[str]:
        """Sets the line for the screen; returns at most one warning."""
        send = self.place and f"wandb sync {'--include-online ' if self.url else ''}{shlex.quote(self.place)}"
        if self.url:
            self.line = f"W&B: {self.url}"
        elif send:
            self.line = f"W&B: logged offline; to send it: {send}"
        if not self.troubles:
            return []
        self.line = self.line if self.url else ""
        return [
            f"W&B: {'; '.join(dict.fromkeys(self.troubles))}. "
            + (f"To send it later: {send}" if send else "The run's own files hold everything.")
        ]


def summary(outcome: Record) -> dict:
    """What a job came to, flat: status, and memory/..., speed/..., evaluation/..., training/... and error/..."""
    flat = {"status": outcome.status}
    for part in ("model", "training", "evaluation", "speed", "memory", "error"):
        values = getattr(outcome, part)
        for key, value in (asdict(values) if values else {}).items():
            if isinstance(value, dict):
                flat |= {f"{part}/{key}/{name}": number for name, number in value.items()}
            elif value is not None and not isinstance(value, list):
                flat[f"{part}/{key}"] = value
    return flat


class Helper:
    """The process in which W&B lives, from outside. Messages are JSON, a line each."""

    def __init__(self):
        self.channel, theirs = socket.socketpair()
        with theirs:
            self.process = interpreter.start_python(
                HELPER, theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )

    def tell(self, **message) -> None:
        """Raises OSError when it is gone, or does not listen."""
        self.channel.settimeout(2)
        self.channel.sendall(json.dumps(message, default=str).encode() + b"\n")

    def nudge(self) -> None:
        """There is something new in steps.jsonl. Lost without harm where the process is busy or gone."""
        self.channel.settimeout(0)
        with contextlib.suppress(OSError):
            self.channel.send(b"{}\n")

    def answers(self, deadline: float) -> Iterator[dict]:
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
        """End the process and its children. What W&B has written to disk can still be sent."""
        self.channel.close()  # it ends itself then, and W&B's service with it
        try:
            self.process.wait(1)
        except subprocess.TimeoutExpired:
            end_children(self.process.pid)
            self.process.kill()
            self.process.wait()


_idle: list[Helper] = []  # at most one in a sweep that runs its jobs one after another
