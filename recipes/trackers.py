"""tracker: where a run's numbers go besides its folder: nowhere, or to Weights & Biases (W&B) as well.

W&B lives in a process of its own beside the worker, and reads there what the worker writes to
`steps.jsonl`. So nothing that W&B does (a network that hangs, a service in the background, an exit that
waits for both) delays a job or Ctrl-C: whatever becomes of it, its process can be ended from outside.

The upper part of this file is the parent's, the lower part that process's own.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import queue
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Callable, Iterator

from recipes import launch
from recipes.record import Record

HELPER = "import sys; from recipes.trackers import tend; tend(int(sys.argv[1]))"
MODES = ("online", "offline", "disabled", "shared", "dryrun", "run")  # W&B's words; the first three are enough
STOP_SECONDS = 0.3  # what W&B gets after Ctrl-C, which must be over within a second
SPARE_BYTES = 2**20  # with less than this on the disk, W&B's files may have lost their end in silence


def problems(cfg) -> list[str]:
    """What W&B would refuse. A missing package is none: its failure never costs a run."""
    tracker = cfg.tracker
    if tracker.name != "wandb":
        return []
    found = []
    key, mode = ("tracker.mode", tracker.mode) if tracker.mode else ("WANDB_MODE", os.environ.get("WANDB_MODE"))
    if mode and mode not in MODES:
        found.append(f"{key}={mode} is not one of {', '.join(MODES)}.")
    if not tracker.project or len(tracker.project) > 128 or set(tracker.project) & set("/\\#?%:"):
        found.append(f"tracker.project={tracker.project} cannot be a project's name: "
                     "W&B wants 1 to 128 characters without / \\ # ? % and :.")
    return found


class Tracker:
    """One job's tracker; this one tracks nothing.

    line: after `finish`, where the run can be seen, for the screen; "" where it cannot.
    """

    line = ""

    def hear(self, kind: str, values: dict) -> None:
        """A message of the worker: phase, progress or warning. Never waits."""

    def finish(self, outcome: Record) -> list[str]:
        """The job is over. Returns warnings, a line each; raises nothing but KeyboardInterrupt."""
        return []


def open_tracker(cfg, outcome: Record, folder: Path, group: str | None = None) -> Tracker:
    """The tracker of a job, to be opened before its worker starts. group: its sweep's name, None for a single run."""
    if not _wanted(cfg):
        return Tracker()
    words = [word for word in outcome.overrides if not word.startswith("tracker")]
    config = outcome.config | {"config_key": outcome.config_key, "overrides": outcome.overrides,
                               "environment": outcome.environment}
    name = os.environ.get("WANDB_NAME") or " ".join(words) or outcome.config_key
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
        steps = Path(folder, launch.STEPS_FILE).absolute()
        init |= {"dir": str(Path(folder).absolute()), "project": tracker.project, "entity": tracker.entity,
                 "mode": tracker.mode, "group": group[:128] if group else None}
        with self._troubled():
            waiting = _idle.pop() if _idle else None
            self.helper = waiting if waiting and waiting.process.poll() is None else Helper()
            self.helper.tell(init=init, steps=str(steps), earlier=_stamp(steps), seconds=self.seconds)

    def hear(self, kind: str, values: dict) -> None:
        if kind == "progress" and self.helper:
            self.helper.nudge()

    def finish(self, outcome: Record) -> list[str]:
        return self.end(STOP_SECONDS if outcome.status == "interrupted" else self.seconds,
                        summary=summary(outcome), exit_code=0 if outcome.status in ("ok", "preempted") else 1)

    def end(self, limit: float, **last) -> list[str]:
        """Send the last words, and wait so many seconds until W&B has them."""
        helper, self.helper, done = self.helper, None, False
        try:
            with self._troubled():
                if helper:
                    helper.tell(last=last)
                    done = self._listen(helper, limit)
        finally:  # Ctrl-C comes through here, too
            if done and self.group:  # the sweep's next job need not import wandb again
                _idle.append(helper)
            elif helper:
                helper.end()
        return self._told()

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
        """No failure of a process that we could do without reaches the job."""
        try:
            yield
        except (OSError, ValueError) as error:
            self.troubles.append(f"its process has failed ({reason(error)})")

    def _told(self) -> list[str]:
        """The one warning, if there is any; else the line for the screen."""
        send = self.place and f"wandb sync {'--include-online ' if self.url else ''}{shlex.quote(self.place)}"
        if self.url:
            self.line = f"W&B: {self.url}"
        elif send:
            self.line = f"W&B: logged offline; to send it: {send}"
        if not self.troubles:
            return []
        self.line = self.line if self.url else ""
        return [f"W&B: {'; '.join(dict.fromkeys(self.troubles))}. "
                + (f"To send it later: {send}" if send else "The run's own files hold everything.")]


def summary(outcome: Record) -> dict:
    """What a job came to, flat: status, and memory/..., speed/..., evaluation/..., training/... and error/..."""
    flat = {"status": outcome.status}
    for part in ("training", "evaluation", "speed", "memory", "error"):
        values = getattr(outcome, part)
        for key, value in (asdict(values) if values else {}).items():
            if isinstance(value, dict):
                flat |= {f"{part}/{key}/{name}": number for name, number in value.items()}
            elif value is not None and not isinstance(value, list):
                flat[f"{part}/{key}"] = value
    return flat


def _stamp(file: Path) -> list[int] | None:
    """Tells a file from what becomes of it later: an earlier attempt's steps are not this run's."""
    with contextlib.suppress(OSError):
        return [file.stat().st_mtime_ns, file.stat().st_size]
    return None


class Helper:
    """The process in which W&B lives, from outside. Messages are JSON, a line each."""

    def __init__(self):
        self.channel, theirs = socket.socketpair()
        with theirs:
            self.process = launch._python(HELPER, theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

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
        """Leave nothing of it behind. What W&B has on disk by then can still be sent."""
        self.channel.close()  # it ends itself then, and W&B's service with it
        try:
            self.process.wait(1)
        except subprocess.TimeoutExpired:
            _end_children(self.process.pid)
            self.process.kill()
            self.process.wait()


_idle: list[Helper] = []  # at most one in a sweep that runs its jobs one after another


def _end_children(pid: int) -> None:
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


# --- W&B's process ---------------------------------------------------------------------------------


def tend(descriptor: int) -> None:
    """Track one run after another for the parent, until it is gone."""
    channel, inbox = socket.socket(fileno=descriptor), queue.SimpleQueue()
    threading.Thread(target=_receive, args=(channel, inbox), daemon=True).start()
    os.nice(5)  # the training comes first
    # Unless a person wants it, no report about us goes to W&B: it would be one more thing to wait for.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

    def tell(**message):
        channel.sendall(json.dumps(message).encode() + b"\n")

    logged = None
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
    _end_children(os.getpid())
    os._exit(0)


class Logged:
    """A run at W&B. tell(**message): speaks to the parent."""

    offline_because: str | None = None  # of the sweep's earlier jobs: the next ones do not wait for it again

    def __init__(self, tell: Callable):
        self.tell, self.run, self.offset, self.troubles = tell, None, 0, set()

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
            "console": "off", "silent": True, "symlink": False, "stop_fn": lambda: None,
            # Nothing of this machine but what the record tells, and nothing that measures beside us.
            "save_code": False, "disable_code": True, "disable_git": True, "x_disable_meta": True,
            "x_disable_machine_info": True, "x_disable_stats": True, "x_save_requirements": False,
            # Half of the time for the start, most of it for the end: so the parent hears what came of both.
            "init_timeout": self.seconds / 2, "finish_timeout": self.seconds * 0.8, "finish_timeout_raises": True,
            "x_transaction_log_flush_interval": 1.0,  # what is lost at most when this process is ended
        }
        quiet = {key: value for key, value in quiet.items() if key in Settings.model_fields}  # versions differ
        init = {**job["init"], "settings": Settings(**quiet)}
        if Logged.offline_because:
            self.trouble(Logged.offline_because)
            init["mode"] = "offline"
        self.run = self._start(init)
        url = None if self.run.offline else self.run.url
        self.tell(place=str(Path(self.run.dir).parent), url=url)
        self.read_steps()  # what came meanwhile

    def _start(self, init: dict):
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
        run = wandb.init(**init | {"mode": "offline"})
        Logged.offline_because = why
        self.trouble(why)
        return run

    def read_steps(self) -> None:
        """Log the whole lines of steps.jsonl that are new."""
        if self.run is None or _stamp(self.steps) in (None, self.earlier):
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
        self.run.log({"training/loss": float("nan") if loss is None else loss,
                      "training/step_seconds": row["seconds"],
                      "training/samples_per_second": row["samples"] / seconds,
                      "training/tokens_per_second": row["tokens"] / seconds}, step=row["step"])

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
    return wandb.Table(columns=columns, data=[list(row) for row in zip(*typed)])
