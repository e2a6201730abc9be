"""The menu `tracker`: the figures of a run go to steps.jsonl alone, or also to a tracker.

The tracker runs in a process of its own, which reads the worker's `steps.jsonl` (`process.py`). A slow network or a
tracker's background service therefore delays neither the job nor Ctrl-C: the process can be ended at any time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from legroom.config import Config
from legroom.machine import interpreter
from legroom.options import tracker as tracker_options
from legroom.records import run_folder
from legroom.records.record import Record
from legroom.tracking.process import TRACKERS, State, end_children, stamp
from legroom.tracking.run import Job, Result, flat, reason

CODE = "import sys; from legroom.tracking.process import serve; serve(int(sys.argv[1]))"
STOP_SECONDS = 0.3  # what the tracker gets after Ctrl-C, which must be over within a second


def open_tracker(
    cfg: Config, outcome: Record, folder: Path, group: str | None = None, differs: Sequence[str] = ()
) -> Tracker:
    """The tracker of a job, to be opened before its worker starts.

    group: its sweep's name, None for a single run. differs: the overrides in which it differs from the sweep's other
    jobs; the run's name begins with them, because a tracker shows the beginning of a name.
    """
    if not tracker_options.sends(cfg):
        return Tracker()
    overrides = [override for override in outcome.overrides if not override.lstrip("+~").startswith("tracker")]
    first = [override for override in differs if override in overrides]
    name = " ".join(dict.fromkeys([*first, *overrides])) or outcome.config_key
    config = dict(outcome.config)
    for key in ("config_key", "overrides", "environment"):
        config[key] = getattr(outcome, key)
    return ProcessTracker(_job(cfg, folder, name, group, config))


def sweep_line(cfg: Config, folder: Path) -> str:
    """What to type to see or to send all jobs of a sweep in this folder, or ""."""
    if not tracker_options.sends(cfg):
        return ""
    kind = TRACKERS[cfg.tracker.kind]
    line = kind.sweep_line(folder.absolute())
    if not line:
        return ""
    return f"{kind.label}: {line}"


def _job(cfg: Config, folder: Path, name: str, group: str | None, config: dict[str, Any]) -> Job:
    """The tags are the recipe, the model and the options by which runs are searched, then what a person has typed."""
    tags: dict[str, None] = {}  # each once
    for menu in ("recipe", "model", "precision", "optim", "parallelism"):
        values = config.get(menu, {})
        tags[os.path.basename(values.get("pretrained") or values.get("name") or "")] = None
    tags |= dict.fromkeys(cfg.tracker.tags or ())
    folder = folder.absolute()
    return Job(
        tracker=cfg.tracker.kind,
        settings=dataclasses.asdict(cfg.tracker),
        folder=str(folder),
        name=name,
        group=group,
        tags=[tag for tag in tags if tag],
        config=config,
        earlier=stamp(folder / run_folder.STEPS_FILE),
    )


def summary(outcome: Record) -> dict[str, Any]:
    """What a job came to, flat: status, and memory/..., speed/..., evaluation/..., training/... and error/..."""
    values: dict[str, Any] = {"status": outcome.status}
    for key in ("training", "evaluation", "speed", "memory", "error"):
        part = getattr(outcome, key)
        if part is not None:
            values |= flat(dataclasses.asdict(part), f"{key}/")
    return {key: value for key, value in values.items() if not isinstance(value, list)}


class Tracker:
    """One job's tracker; this one tracks nothing.

    line: after `finish`, where the run can be seen, for the screen; "" where it cannot.
    """

    line = ""

    def finish(self, outcome: Record) -> list[str]:
        """The job is over. Returns warnings, a line each; raises nothing but KeyboardInterrupt."""
        return []


class ProcessTracker(Tracker):
    """A run at one of the trackers in `TRACKERS`."""

    def __init__(self, job: Job):
        self.job = job
        self.kind = TRACKERS[job.tracker]
        self.state = State()
        self.process: TrackerProcess | None = None
        with self._troubled():
            if _idle:
                self.process = _idle.pop()
            if self.process is None or self.process.process.poll() is not None:
                self.process = TrackerProcess()
            self.process.channel.send(job)

    def finish(self, outcome: Record) -> list[str]:
        """Send the result, and wait until the tracker has everything, as long as the option says. At most one line."""
        result = Result(summary(outcome), 0 if outcome.status in ("ok", "preempted") else 1)
        limit = STOP_SECONDS if outcome.status == "interrupted" else self.job.settings["finish_seconds"]
        process, self.process = self.process, None
        try:
            with self._troubled():
                if process:
                    self._listen(process.channel, result, limit)
        finally:  # Ctrl-C comes through here, too
            if process and self.state.done and self.job.group:  # the next job need not import the package again
                _idle.append(process)
            elif process:
                process.end()
        state = self.state
        is_in_warning = state.local and state.troubles and state.send_later
        is_of_sweep = state.local and self.job.group  # which has one line for all of its jobs
        self.line = ""
        if state.where and not is_in_warning and not is_of_sweep:
            self.line = f"{self.kind.label}: {state.where}"
        if not state.troubles:
            return []
        advice = "The run's own files hold everything."
        if state.send_later:
            advice = f"To send it later: {state.send_later}"
        return [f"{self.kind.label}: {'; '.join(state.troubles)}. {advice}"]

    def _listen(self, channel: Connection, result: Result, limit: float) -> None:
        """Send the result and receive states until the tracker has it all, or the limit in seconds is over."""
        channel.send(result)
        deadline = time.monotonic() + limit
        while not self.state.done:
            if not channel.poll(max(deadline - time.monotonic(), 0)):
                self.state.troubles.append(f"not done {limit:g} seconds after the job")
                return
            self.state = channel.recv()

    @contextlib.contextmanager
    def _troubled(self) -> Iterator[None]:
        """A failure of the tracker's process becomes a warning instead of a failure of the job."""
        try:
            yield
        except (OSError, EOFError) as error:
            text = reason(error) if str(error) else "ended early"
            self.state.troubles.append(f"its process has failed ({text})")


class TrackerProcess:
    """The process in which a tracker runs. channel: takes a Job and then its Result, and gives States."""

    def __init__(self):
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = interpreter.start_python(CODE, theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.channel = Connection(ours.detach())

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


def close() -> None:
    """End the process that waits for a sweep's next job. Without this call it ends when the parent does."""
    while _idle:
        _idle.pop().end()
