"""The process that runs W&B: logs what the worker writes to `steps.jsonl`, on messages from `trackers`.

Imports W&B only when a run begins, because the parent imports `reason`, `stamp` and `end_children` from here.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import queue
import re
import shutil
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recipes.units import MIB

SPARE_BYTES = MIB  # with less than this on the disk, W&B's files may have lost their end in silence


def serve(descriptor: int) -> None:
    """Track one run after another for the parent, until it is gone."""
    channel, inbox = socket.socket(fileno=descriptor), queue.SimpleQueue()
    threading.Thread(target=_receive, args=(channel, inbox), daemon=True).start()
    os.nice(5)  # the training comes first
    # Unless a person wants it, no report about us goes to W&B: it would be one more thing to wait for.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

    def tell(**message):
        channel.sendall(json.dumps(message).encode() + b"\n")

    logged = Logged(tell)
    while True:
        message = inbox.get()
        try:
            if "init" in message:
                logged = Logged(tell)
                logged.open(message)
            elif "last" in message:
                logged.close(**message["last"])
            else:
                logged.read_steps()
        except Exception as error:
            logged.trouble(reason(error))
        if "last" in message:
            tell(done=True)


def _receive(channel: socket.socket, inbox: queue.SimpleQueue) -> None:
    """The parent's messages; when it is gone, so are we, whatever the other thread waits for."""
    with contextlib.suppress(OSError):
        for line in channel.makefile("rb"):
            message = json.loads(line)
            if message or inbox.empty():  # one nudge is as good as many
                inbox.put(message)
    end_children(os.getpid())
    os._exit(0)


class Logged:
    """A run at W&B. tell(**message): speaks to the parent."""

    offline_because: str | None = None  # of the sweep's earlier jobs: the next ones do not wait for it again

    def __init__(self, tell: Callable):
        self.tell, self.offset = tell, 0
        self.run: Any = None
        self.troubles: set[str] = set()

    def trouble(self, text: str) -> None:
        """Each once: a failure may come back with every step."""
        if text not in self.troubles:
            self.troubles.add(text)
            self.tell(troubles=[text])

    def open(self, job: dict) -> None:
        """Start the run: online where that is wanted and works, else offline. Raises what wandb raises then."""
        self.steps, self.earlier, self.seconds = Path(job["steps"]), job["earlier"], job["seconds"]
        try:
            from wandb import Settings
        except ImportError as error:
            raise ImportError(f"the package wandb cannot be imported ({error}): pip install wandb") from error
        quiet = {
            "console": "off",
            "silent": True,
            "symlink": False,
            "stop_fn": lambda: None,
            # Nothing of this machine but what the record tells, and nothing that measures beside us.
            "save_code": False,
            "disable_code": True,
            "disable_git": True,
            "x_disable_meta": True,
            "x_disable_machine_info": True,
            "x_disable_stats": True,
            "x_save_requirements": False,
            # Half of the time for the start, most of it for the end: so the parent hears what came of both.
            "init_timeout": self.seconds / 2,
            "finish_timeout": self.seconds * 0.8,
            "finish_timeout_raises": True,
            "x_transaction_log_flush_interval": 1.0,  # what is lost at most when this process is ended
        }
        quiet = {key: value for key, value in quiet.items() if key in Settings.model_fields}  # versions differ
        init: dict[str, Any] = {**job["init"], "settings": Settings(**quiet)}
        if Logged.offline_because:
            self.trouble(Logged.offline_because)
            init["mode"] = "offline"
        self.run = self._start(init)
        url = None if self.run.offline else self.run.url
        self.tell(place=str(Path(self.run.dir).parent), url=url)
        self.read_steps()  # what came meanwhile

    def _start(self, init: dict[str, Any]) -> Any:
        import wandb

        self.said = sys.stderr = io.StringIO()
        before = set(Path(init["dir"]).glob("wandb/run-*"))
        try:
            return wandb.init(**init)
        except Exception as error:  # no key, a wrong one, no network, a server that does not answer
            why = f"no log-in or no connection ({reason(error)}), so it logged offline"
        self._stop()
        for folder in set(Path(init["dir"]).glob("wandb/run-*")) - before:
            shutil.rmtree(folder, ignore_errors=True)  # the failed start's: it holds nothing
        self.said = sys.stderr = io.StringIO()
        os.environ["WANDB_MODE"] = "offline"  # also over a word there that wandb does not know
        init["mode"] = "offline"
        run = wandb.init(**init)
        Logged.offline_because = why
        self.trouble(why)
        return run

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
                self._log(json.loads(line))

    def _log(self, row: dict) -> None:
        loss, seconds = row["loss"], max(row["seconds"], 1e-9)
        self.run.log(
            {
                "training/loss": float("nan") if loss is None else loss,
                "training/step_seconds": row["seconds"],
                "training/samples_per_second": row["samples"] / seconds,
                "training/tokens_per_second": row["tokens"] / seconds,
            },
            step=row["step"],
        )

    def close(self, summary: dict, exit_code: int, table: str | None = None) -> None:
        """The rest of the steps, the summary, the table; then wait for W&B."""
        try:
            self.read_steps()
            if self.run is None:
                return
            self.run.summary.update(summary)
            if table:
                self.run.log({"results": read_table(Path(table))})
            self.run.finish(exit_code=exit_code)
        finally:
            self._stop()
        if shutil.disk_usage(self.steps.parent).free < SPARE_BYTES:
            self.trouble("the disk is full, so its files may lack their end")
        for line in self.said.getvalue().splitlines():  # what else went wrong, it only prints
            level, _, text = line.removeprefix("wandb: ").partition(" ")
            if level in ("WARNING", "ERROR"):
                self.trouble(reason(text))

    def _stop(self) -> None:
        """End W&B's service; a new one starts with the next run."""
        with contextlib.suppress(Exception, SystemExit):
            import wandb

            wandb.teardown()


def read_table(file: Path):
    """A CSV file as a wandb.Table: columns of numbers as numbers, empty cells as none."""
    import wandb

    columns, *rows = csv.reader(file.open(newline=""))
    typed = []
    for cells in zip(*rows):
        try:
            typed.append([float(cell) if cell else None for cell in cells])
        except ValueError:
            typed.append([cell or None for cell in cells])
    return wandb.Table(columns=list(columns), data=[list(row) for row in zip(*typed)])


def end_children(pid: int) -> None:
    """End W&B's service, which runs in a session of its own: it is found as a child."""
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
    key = os.environ.get("WANDB_API_KEY")
    if key:
        text = text.replace(key, "***")
    text = re.sub(r"//[^/\s@]+@", "//***@", text)  # a proxy's password
    return re.sub(r"[A-Za-z0-9_+=-]{40,}", "***", text)[:300]  # W&B's keys have 40 characters or more


def stamp(file: Path) -> list[int] | None:
    """Tells a file from what becomes of it later: an earlier attempt's steps are not this run's."""
    with contextlib.suppress(OSError):
        return [file.stat().st_mtime_ns, file.stat().st_size]
    return None
