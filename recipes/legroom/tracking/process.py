"""The process in which a tracker runs: logs what the worker writes to `steps.jsonl` until the parent sends a result.

A tracker's package is imported only when a run begins, because the parent imports this module, too.
"""

import contextlib
import json
import os
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from legroom.records import run_folder
from legroom.records.record import SCORES
from legroom.tracking.local_runs import MlflowRun, TensorboardRun
from legroom.tracking.run import Job, Run, reason
from legroom.tracking.wandb_run import WandbRun

# By option, which has the name of the package.
TRACKERS: dict[str, type[Run]] = {
    "mlflow": MlflowRun,
    "tensorboard": TensorboardRun,
    "wandb": WandbRun,
}
TEMPORARY = "legroom-tracker-"
UNLOCKED_SECONDS = 60  # the age up to which a temporary folder may not be locked yet by its process
POLL_SECONDS = 0.5  # between two looks at steps.jsonl
EVALUATED = ("loss", *SCORES)


@dataclass
class State:
    """What the parent is sent of a run, whenever it has changed. where, local, send_later: see `run.Run`."""

    where: str = Run.where
    local: bool = Run.local
    send_later: str = Run.send_later
    troubles: list[str] = field(default_factory=list)
    done: bool = False


def serve(descriptor: int) -> None:
    """Track one run after another for the parent, until it is gone: it sends a Job, and a Result when that is over."""
    channel = Connection(descriptor)
    inbox = queue.SimpleQueue()
    # Packages make temporary folders as they are imported, and this process ends without taking them down.
    temporary = _temporary_folder()
    tempfile.tempdir = temporary
    os.environ["TMPDIR"] = temporary
    threading.Thread(target=_receive, args=(channel, inbox, temporary), daemon=True).start()
    os.nice(5)  # the training comes first
    while True:
        session = Session(inbox.get(), channel.send)
        result = None
        while result is None:
            session.attempt(session.read_steps)  # also those of the time that the start took
            with contextlib.suppress(queue.Empty):
                result = inbox.get(timeout=POLL_SECONDS)
        session.attempt(session.read_steps)
        if session.run is not None:
            session.attempt(session.run.finish, result)
        session.tell(done=True)


def _temporary_folder() -> str:
    """A folder that is locked while this process lives. Removes those of processes that were killed."""
    import fcntl

    def lock(folder: Path) -> None:
        """Raises OSError where another process has locked the folder."""
        fcntl.flock(os.open(folder, os.O_RDONLY | os.O_NOFOLLOW), fcntl.LOCK_EX | fcntl.LOCK_NB)

    own_folder = Path(tempfile.mkdtemp(prefix=TEMPORARY))
    with contextlib.suppress(OSError):
        lock(own_folder)
    for folder in own_folder.parent.glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):
            age_seconds = time.time() - folder.stat().st_mtime
            if folder == own_folder or age_seconds < UNLOCKED_SECONDS:
                continue
            lock(folder)
            shutil.rmtree(folder, ignore_errors=True)
    return str(own_folder)


def _receive(channel: Connection, inbox: queue.SimpleQueue, temporary: str) -> None:
    """Receive the parent's messages; end this process when the parent is gone, whatever the other thread waits for.

    temporary: a folder that is removed then.
    """
    with contextlib.suppress(OSError, EOFError):
        while True:
            inbox.put(channel.recv())
    end_children(os.getpid())
    shutil.rmtree(temporary, ignore_errors=True)
    os._exit(0)


class Session:
    """One run. send(state): sends its state to the parent."""

    def __init__(self, job: Job, send: Callable[[State], None]):
        self.send = send
        self.run: Run | None = None
        self.troubles: list[str] = []
        self.steps = Path(job.folder, run_folder.STEPS_FILE)
        self.earlier = job.earlier
        self.offset = 0
        self.attempt(self.open, job)

    def tell(self, done: bool = False) -> None:
        run = self.run or Run
        self.send(State(run.where, run.local, run.send_later, self.troubles, done))

    def trouble(self, text: str) -> None:
        """A warning. A failure may come back with every step."""
        if text not in self.troubles:
            self.troubles.append(text)
            self.tell()

    def attempt(self, function: Callable, *arguments: Any) -> None:
        """Call a function whose failure is a warning."""
        try:
            function(*arguments)
        except Exception as error:
            self.trouble(reason(error))

    def open(self, job: Job) -> None:
        """Begin the run."""
        try:
            self.run = TRACKERS[job.tracker](job, self.trouble)
        except ImportError as error:
            text = f"the package {job.tracker} cannot be imported ({error}): pip install {job.tracker}"
            raise ImportError(text) from error
        self.tell()

    def read_steps(self) -> None:
        """Log the whole lines of steps.jsonl that are new."""
        if self.run is None or stamp(self.steps) in (None, self.earlier):
            return
        with open(self.steps, "rb") as file:
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.offset += len(line)
                row = json.loads(line)
                self.run.step = row["step"]
                self.run.log(figures(row), row["step"])


def figures(row: dict[str, Any]) -> dict[str, float]:
    """A line of steps.jsonl as a tracker logs it."""
    values = {}
    if "loss" not in row:
        for key in EVALUATED:
            if row.get(f"evaluation_{key}") is not None:
                values[f"evaluation/{key}"] = row[f"evaluation_{key}"]
        return values
    values["training/loss"] = float("nan") if row["loss"] is None else row["loss"]
    for key in ("learning_rate", "gradient_norm", "epoch"):
        if row.get(key) is not None:
            values[f"training/{key}"] = row[key]
    seconds = max(row["seconds"], 1e-9)
    values["training/step_seconds"] = row["seconds"]
    values["training/samples_per_second"] = row["samples"] / seconds
    values["training/tokens_per_second"] = row["tokens"] / seconds
    return values


def end_children(pid: int) -> None:
    """End a tracker's own service, which may run in a session of its own: it is found as a child."""
    import psutil

    with contextlib.suppress(psutil.Error):
        children = psutil.Process(pid).children(recursive=True)
        for child in children:
            with contextlib.suppress(psutil.Error):
                child.kill()
        psutil.wait_procs(children, timeout=1)


def stamp(file: Path) -> tuple[int, int] | None:
    """Tells a file from what becomes of it later: an earlier attempt's steps are not this run's."""
    with contextlib.suppress(OSError):
        return file.stat().st_mtime_ns, file.stat().st_size
    return None
