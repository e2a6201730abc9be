"""Watch a worker, stop it, and see to it that a record is left whatever becomes of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from multiprocessing.connection import wait
from pathlib import Path
from typing import Callable

from recipes import failure, launch, record
from recipes.config import from_dict
from recipes.record import Error, Record

GRACE_SECONDS = 0.6  # between asking a worker to stop and ending it; Ctrl-C must be over within a second
POLL_SECONDS = 0.2


def run(job: launch.Job, hear: Callable, nursery: launch.Nursery | None = None) -> Record:
    """Run a job to its end. hear(kind, values): called for each message of the worker.

    nursery: forks the worker, where many jobs are run; without one it gets a new interpreter.

    Returns the record that lies in the folder. Ctrl-C (KeyboardInterrupt) is an end like any other.
    Raises OSError when the folder cannot be written.
    """
    kernel_kills = _kernel_kills()
    told = {"phase": "load"}

    def listen(kind, values):
        if kind == "phase":
            told["phase"] = values["phase"]
        with contextlib.suppress(OSError):  # a screen that is gone (`2>&1 | head`) is no reason to stop
            hear(kind, values)

    limit = job.record.config["launch"]["timeout_seconds"]
    running = None
    try:
        running = launch.start(job, nursery)
        ended = _watch(running, listen, time.monotonic() + limit if limit else None)
    except KeyboardInterrupt:
        ended = "interrupted"
    with _undisturbed():  # a second Ctrl-C must not cost the record
        if ended == "interrupted" and running is not None:
            _ask_to_stop(running, listen)
        if running is not None:
            _end(running)
        code = running.process.returncode if running is not None else 0
        outcome = _written(job.folder)
        if outcome is None:
            outcome = _post_mortem(job, ended, code, told["phase"], kernel_kills)
            record.write(outcome, job.folder)
        elif outcome.status == "ok" and code != 0:  # the result was safe before the ledger's step
            outcome.warnings.append(f"the worker ended ({_how(code)}) while it counted memory; "
                                    "the training itself was over.")
            record.write(outcome, job.folder)
    return outcome


@contextlib.contextmanager
def _undisturbed():
    """Leave Ctrl-C and its relatives unheard for a moment."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    if threading.current_thread() is not threading.main_thread():  # handlers belong to the main thread
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(running: launch.Running, hear: Callable, deadline: float | None) -> str:
    """Listen until the worker is gone: 'exited', or 'timeout' at the deadline."""
    while True:
        if deadline is not None and time.monotonic() > deadline:
            return "timeout"
        gone = running.process.poll() is not None  # asked first, so that its last words are still read
        with contextlib.suppress(EOFError, ConnectionResetError):
            while running.pipe.poll(0):
                hear(*running.pipe.recv())
        if gone:
            return "exited"
        try:
            wait([running.pipe], timeout=POLL_SECONDS)
            if running.pipe.poll(0):
                hear(*running.pipe.recv())
        except (EOFError, ConnectionResetError):  # it closed its end: it is about to be gone
            with contextlib.suppress(Exception):
                running.process.wait(POLL_SECONDS)


def _ask_to_stop(running: launch.Running, hear: Callable) -> None:
    """SIGINT, and a moment to write the record."""
    with contextlib.suppress(ProcessLookupError):
        running.process.send_signal(signal.SIGINT)
        _watch(running, hear, time.monotonic() + GRACE_SECONDS)


def _end(running: launch.Running) -> None:
    """Leave nothing of the worker's session behind, loader processes included."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(running.process.pid, signal.SIGKILL)
    running.process.wait()
    running.pipe.close()


def _written(folder: Path) -> Record | None:
    try:
        return record.read(folder)
    except (OSError, ValueError):
        return None


def _post_mortem(job: launch.Job, ended: str, code: int, phase: str, kernel_kills: int) -> Record:
    """The record of a worker that could not write its own, from what its parent saw."""
    outcome = job.record
    outcome.training = _steps_written(job.folder)
    where = {"train": "forward", "count": "step"}.get(phase, phase)  # a dead process does not say more
    if ended == "interrupted":
        outcome.status, outcome.error = "interrupted", Error(where, "KeyboardInterrupt", "stopped by the user")
    elif ended == "timeout":
        limit = outcome.config["launch"]["timeout_seconds"]
        outcome.status = "timeout"
        outcome.error = Error(where, "Timeout", f"not done after {limit:g} seconds",
                              "Raise launch.timeout_seconds, or give it fewer steps with train.max_steps.")
    elif code < 0 and _kernel_kills() > kernel_kills:
        outcome.status = "oom"
        outcome.error = Error(where, "KernelOutOfMemory", f"the system ran out of memory and ended it ({_how(code)})",
                              failure.memory_hint(from_dict(outcome.config)))
    elif code < 0:
        outcome.status, outcome.error = "killed", Error(where, "Killed", _how(code))
    else:
        outcome.status = "failed"
        outcome.error = Error(where, "WorkerDied", f"{_how(code)} and left no record",
                              f"Its last words are in {job.folder / launch.LOG_FILE}.")
    return outcome


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _steps_written(folder: Path) -> record.Training:
    """What steps.jsonl holds of a training; a half-written last line does not count."""
    rows = []
    with contextlib.suppress(OSError, ValueError):
        for line in Path(folder, launch.STEPS_FILE).read_text().splitlines():
            rows.append(json.loads(line))
    losses = [row["loss"] for row in rows]
    return record.Training(len(rows), sum(row["samples"] for row in rows), sum(row["tokens"] for row in rows),
                           losses, losses[-1] if losses else None)


def _kernel_kills() -> int:
    """How many processes Linux has ended for want of memory since it started; 0 elsewhere."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
