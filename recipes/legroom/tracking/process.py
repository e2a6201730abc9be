"""The process in which a tracker runs: logs what the worker writes to `steps.jsonl`, on messages from `client`.

A tracker's package is imported only when a run begins, because the parent imports this module, too.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import re
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from legroom.tracking.interface import Job, Result, Run

TEMPORARY = "legroom-tracker-"
EVALUATED = ("loss", "accuracy", "perplexity")
SECRETS = ("WANDB_API_KEY", "HF_TOKEN", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")


def serve(descriptor: int) -> None:
    """Track one run after another for the parent, until it is gone."""
    channel, inbox = socket.socket(fileno=descriptor), queue.SimpleQueue()
    # Packages make temporary folders as they are imported, and this process ends without taking them down.
    temporary = tempfile.tempdir = os.environ["TMPDIR"] = _temporary_folder()
    threading.Thread(target=_receive, args=(channel, inbox, temporary), daemon=True).start()
    os.nice(5)  # the training comes first

    def tell(**message: Any) -> None:
        channel.sendall(json.dumps(message).encode() + b"\n")

    session = Session(tell)
    while True:
        message = inbox.get()
        try:
            if "job" in message:
                session = Session(tell)
                session.open(Job(**message["job"]), Path(message["steps"]), message["earlier"])
            elif "result" in message:
                session.finish(Result(**message["result"]))
            else:
                session.read_steps()
        except Exception as error:
            session.trouble(reason(error))
        if "result" in message:
            tell(done=True)


def _temporary_folder() -> str:
    """A folder that is locked while this process lives. Removes those of processes that were killed."""
    import fcntl

    for left in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):
            old = time.time() - left.stat().st_mtime > 60  # a new one may not be locked yet
            descriptor = os.open(left, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if old and left.stat().st_uid == os.getuid():
                    shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(descriptor)
    made = tempfile.mkdtemp(prefix=TEMPORARY)
    with contextlib.suppress(OSError):  # a file system without locks: nobody removes it there
        fcntl.flock(os.open(made, os.O_RDONLY), fcntl.LOCK_EX)
    return made


def _receive(channel: socket.socket, inbox: queue.SimpleQueue, temporary: str) -> None:
    """Read the parent's messages; end this process when the parent is gone, whatever the other thread waits for.

    temporary: a folder that is removed then.
    """
    with contextlib.suppress(OSError):
        for line in channel.makefile("rb"):
            message = json.loads(line)
            if message or inbox.empty():  # one call to read the steps is as good as many
                inbox.put(message)
    end_children(os.getpid())
    shutil.rmtree(temporary, ignore_errors=True)
    os._exit(0)


class Session:
    """One run. tell(**message): sends a message to the parent."""

    def __init__(self, tell: Callable):
        self.tell = tell
        self.run: Run | None = None
        self.offset = 0  # bytes of steps.jsonl that are read
        self.troubles: set[str] = set()

    def where(self, line: str, local: bool, send_later: str = "") -> None:
        """See `interface.Say`."""
        self.tell(line=line, local=local, send_later=send_later)

    def trouble(self, text: str) -> None:
        """See `interface.Say`. A failure may come back with every step."""
        if text not in self.troubles:
            self.troubles.add(text)
            self.tell(troubles=[text])

    def open(self, job: Job, steps: Path, earlier: list[int] | None) -> None:
        """Begin the run. earlier: the stamp of a steps.jsonl that another attempt has left."""
        self.steps, self.earlier = steps, earlier
        module = importlib.import_module(f"legroom.tracking.{job.tracker}_run")
        try:
            self.run = module.open_run(job, self)
        except ImportError as error:
            package = module.PACKAGE
            raise ImportError(f"the package {package} cannot be imported ({error}): pip install {package}") from error
        self.read_steps()  # those of the time that the start took

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
                self.run.log(figures(row), row["step"])

    def finish(self, result: Result) -> None:
        """Log the rest of the steps and the result, and wait until the tracker has everything."""
        if self.run is None:
            return
        try:
            self.read_steps()
        finally:
            self.run.finish(result)


def figures(row: dict[str, Any]) -> dict[str, float]:
    """A line of steps.jsonl as a tracker logs it."""
    if "loss" not in row:
        found = {key: row.get(f"evaluation_{key}") for key in EVALUATED}
        return {f"evaluation/{key}": value for key, value in found.items() if value is not None}
    seconds = max(row["seconds"], 1e-9)
    known = {key: row[key] for key in ("learning_rate", "gradient_norm", "epoch") if row.get(key) is not None}
    return {
        "training/loss": float("nan") if row["loss"] is None else row["loss"],
        **{f"training/{key}": value for key, value in known.items()},
        "training/step_seconds": row["seconds"],
        "training/samples_per_second": row["samples"] / seconds,
        "training/tokens_per_second": row["tokens"] / seconds,
    }


def end_children(pid: int) -> None:
    """End a tracker's own service, which may run in a session of its own: it is found as a child."""
    import psutil

    with contextlib.suppress(psutil.Error):
        children = psutil.Process(pid).children(recursive=True)
        for child in children:
            with contextlib.suppress(psutil.Error):
                child.kill()
        psutil.wait_procs(children, timeout=1)


def reason(error: BaseException | str) -> str:
    """An error in one line, without anything that could be a key or a password."""
    text = " ".join((str(error) or type(error).__name__).split())
    text = text.partition(" Consider increasing")[0].rstrip(".")  # advice about a setting that is ours
    for key in filter(None, map(os.environ.get, SECRETS)):
        text = text.replace(key, "***")
    text = re.sub(r"//[^/\s@]+@", "//***@", text)  # a proxy's password
    return re.sub(r"[A-Za-z0-9_+=-]{40,}", "***", text)[:300]  # keys have 40 characters or more


def stamp(file: Path) -> list[int] | None:
    """Tells a file from what becomes of it later: an earlier attempt's steps are not this run's."""
    with contextlib.suppress(OSError):
        return [file.stat().st_mtime_ns, file.stat().st_size]
    return None
