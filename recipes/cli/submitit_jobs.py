"""Clusters: a sweep's jobs as submitit runs them, on SLURM or as processes of this machine.

submitit pickles a job and calls it elsewhere, once for each of its tasks; what it prints lands in a file.
So there are two sides: the command waits, says what the jobs have noted, and buries those that died; a
job finds its place among its tasks, and hands its signals on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException

from recipes import config
from recipes.cli import console, summary, sweep
from recipes.jobs import launch, post_mortem
from recipes.machine import host, interpreter
from recipes.options import memory_hints
from recipes.records import record_file
from recipes.third_party import submitit_private

POLL_SECONDS = 0.2  # how often the jobs' notes are read, on this machine
SHARED_POLL_SECONDS = 2.0  # and on a file system that many share
LAG_SECONDS = 15.0  # what a file takes to be seen on another machine; submitit waits as long for its own
GRACE_SECONDS = 3.0  # for the jobs of a command that was stopped
# sacct's words for how a job ended, and ours; all others are `killed`.
SLURM_STATES = {"TIMEOUT": "timeout", "OUT_OF_MEMORY": "oom"}


# --- the command's side ----------------------------------------------------------------------------


@contextlib.contextmanager
def followed(this: sweep.Sweep, folder: Path | None):
    """While a sweep's jobs run through submitit: say what comes of them, and wait for all, whatever becomes of one.

    folder: the sweep's; None where there is none. Without effect for Hydra's other launchers. Raises HydraException
    with submitit's reason where it cannot start them.
    """
    if folder is None or not host.has("submitit"):
        yield
        return
    follower = Follower(this, folder)

    def start_and_follow(start: Callable, rows: tuple) -> list[Followed]:
        with _as_jobs_need_it():
            jobs = start()
            each = zip(jobs, *submitit_private.overrides_and_numbers(rows))
            return [follower.follow(job, overrides, number) for job, overrides, number in each]

    try:
        with submitit_private.jobs_wrapped(start_and_follow):
            yield
    except KeyboardInterrupt:
        follower.stop()
        raise
    except Exception as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if not frame.f_globals.get("__name__", "").startswith("submitit."):
            raise
        raise HydraException(f"submitit cannot start the jobs: {str(error).strip()}") from None


@contextlib.contextmanager
def _as_jobs_need_it():
    """What the processes inherit that submitit starts meanwhile.

    Variables with which another interpreter finds `recipes`, and nothing of the folder that a person stands in.
    And SIGINT blocked: a terminal's Ctrl-C is the command's to handle, not that of submitit's controllers.
    """
    ours = {"PYTHONPATH": interpreter.python_path(), "PYTHONSAFEPATH": "1"}
    before = {name: os.environ.get(name) for name in ours}
    os.environ |= ours
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # one that came meanwhile is heard here


class Follower:
    """The sweep's jobs, seen from the command that waits for them."""

    def __init__(self, this: sweep.Sweep, folder: Path):
        self.this, self.folder = this, folder
        self.jobs: list[Followed] = []
        self.said: dict[int, int] = {}  # number of a job -> how many of its lines are on the screen
        self.problems: list[str] = []

    def follow(self, job, overrides: list[str], number: int) -> Followed:
        """A job that submitit has started."""
        self.jobs.append(Followed(job, overrides, number, self))
        return self.jobs[-1]

    def say(self) -> dict[int, dict]:
        """Put on the screen what the jobs have noted since the last time. Returns number -> note."""
        notes = {note["job"]: note for note in self.this.jobs(self.folder)}
        for number, note in notes.items():
            lines = note["said"][self.said.get(number, 0) :]
            self.said[number] = len(note["said"])
            if note["status"] == sweep.INVALID:  # all jobs say the same
                lines = [line for line in lines if line not in self.problems]
                self.problems += lines
                console.say_problems(lines)
            elif lines:
                console.say("\n".join(lines))
        return notes

    def stop(self) -> None:
        """Ctrl-C: end what runs on this machine; what a cluster runs goes on."""
        going_on = [one.job for one in self.jobs if not one.job.done()]
        if not going_on:
            return
        if self.jobs[0].local:
            _end_local(going_on)
            self.say()
            return
        numbers = " ".join(job.job_id for job in going_on)
        console.say(
            f"The cluster's jobs go on: {numbers}\nscancel {numbers} ends them. When they are over, "
            f"python scripts/report.py {self.folder} makes the table."
        )


class Followed:
    """A job of submitit's, as Hydra's launcher waits for it."""

    def __init__(self, job, overrides: list[str], number: int, follower: Follower):
        self.job, self.overrides, self.number, self.follower = job, overrides, number, follower
        self.local = submitit_private.is_local(job)

    def results(self) -> list[JobReturn]:
        """Wait until it is over, and see to it that it is noted. What came of it stands in its note, not here."""
        pause_seconds = POLL_SECONDS if self.local else SHARED_POLL_SECONDS
        while not self.job.done():
            self.follower.say()
            time.sleep(pause_seconds)
        patience = time.monotonic() + (0 if self.local else LAG_SECONDS)
        while not self._is_over(note := self.follower.say().get(self.number)):
            if time.monotonic() >= patience:
                self.write_post_mortem(note)
                self.follower.say()
                break
            time.sleep(pause_seconds)
        return [JobReturn(status=JobStatus.COMPLETED)]

    @staticmethod
    def _is_over(note: dict | None) -> bool:
        return note is not None and note["status"] != sweep.BEGUN

    def write_post_mortem(self, note: dict | None) -> None:
        """Leave a record and a note for a job that could leave none. note: that it had begun, if it had."""
        state = self.job.state.split()[0]  # 'CANCELLED by 1000'
        status = SLURM_STATES.get(state, "killed")
        last_words = (self.job.stderr() or "").strip().splitlines()[-1:] or ["it said nothing"]
        why = (
            f"its process ended and left no record{'' if self.local else f' ({state})'}: {last_words[0]} "
            f"({self.job.paths.stderr})"
        )
        this, folder = self.follower.this, self.follower.folder
        words = sweep.distinguishing_overrides(self.overrides, sweep.count_jobs(this)[1])
        if note is None:  # a folder's name needs what only the job could find out
            this.note(folder, self.number, "", status, [f"{self.number + 1:>3}  {status:<12}{' '.join(words)}  {why}"])
            return
        outcome = record_file.from_values(note["record"])
        hint = memory_hints.memory_hint(config.from_dict(outcome.config)) if status == "oom" else None
        outcome = post_mortem.write_post_mortem(launch.Job(outcome, folder / note["key"]), status, why, hint)
        this.note(
            folder, self.number, note["key"], outcome.status, [summary.job_line(outcome, self.number + 1, words, False)]
        )


def _end_local(jobs: list) -> None:
    """SIGINT to the tasks, which leave their records; SIGKILL for what is still there after a moment."""
    import psutil

    tasks = []
    for job in jobs:
        with contextlib.suppress(psutil.Error):
            tasks += psutil.Process(int(job.job_id)).children()
    for task in tasks:
        with contextlib.suppress(psutil.Error):
            task.send_signal(signal.SIGINT)
    _, alive = psutil.wait_procs(tasks, timeout=GRACE_SECONDS)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    for job in jobs:  # their controllers, which have nothing left to do
        with contextlib.suppress(psutil.TimeoutExpired, psutil.Error):
            psutil.Process(int(job.job_id)).wait(GRACE_SECONDS)


# --- the job's side --------------------------------------------------------------------------------


def enter(this: sweep.Sweep) -> bool:
    """In a task that submitit started: take its place among the job's tasks. Returns whether this is one.

    Several tasks are the ranks of one job, as a launcher would have started them.
    """
    if this.pid == os.getpid() or "SUBMITIT_EXECUTOR" not in os.environ:
        return False
    from submitit import JobEnvironment
    from submitit.helpers import TorchDistributedEnvironment

    here = JobEnvironment()
    signal.signal(signal.SIGINT, _once)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if here.cluster == "local":
        threading.Thread(target=_end_with_command, args=(this,), daemon=True).start()
    if here.num_tasks > 1:
        TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)
        if here.cluster == "local":  # a host name that leads nowhere must not matter
            os.environ["MASTER_ADDR"] = "127.0.0.1"
    return True


def _once(*_) -> None:
    """Ctrl-C reaches a local task by the terminal and by the command; the second must not cost the record."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _end_with_command(this: sweep.Sweep) -> None:
    """submitit's controllers outlive the command that started them; its jobs shall not."""
    while this.command_runs():
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGINT)


@contextlib.contextmanager
def preemptible(in_task: bool):
    """Let submitit's signal save the run first, where it listens to SIGUSR1; otherwise it is submitit's alone.

    Yields a function for the end: it puts a job that was so asked to stop back into the queue, and then does
    not return.
    """
    if not in_task:
        yield lambda: None
        return
    number = submitit_private.requeue_signal()
    requeue, asked = signal.getsignal(number), []

    def save_first(*arguments):
        listener = signal.getsignal(signal.SIGUSR1)
        if callable(listener):
            asked.append(arguments)
            listener(*arguments)
        else:
            requeue(*arguments)

    def after():
        if asked:
            requeue(*asked[0])

    signal.signal(number, save_first)
    try:
        yield after
    finally:
        signal.signal(number, requeue)
