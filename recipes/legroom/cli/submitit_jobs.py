"""A sweep's jobs under submitit, on SLURM or as processes of this machine.

submitit pickles a job and calls it in other processes, once for each task of the job, with the output in a file. The
command waits for the jobs, prints their notes, and writes records for jobs that ended without one. A task takes its
rank from submitit and passes submitit's signals on to the run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException

from legroom import invocation
from legroom.cli import console
from legroom.cli import sweep as sweeps
from legroom.compat import submitit_private
from legroom.jobs import failures, launch, post_mortem
from legroom.machine import host, interpreter
from legroom.ranks.rank_info import current_rank
from legroom.records import record_file, run_folder

if TYPE_CHECKING:
    from submitit import Job as SubmititJob

POLL_SECONDS = 0.2  # between two reads of the jobs' notes, for jobs on this machine
SHARED_POLL_SECONDS = 2.0  # the same on a shared file system
LAG_SECONDS = 15.0  # until a file is visible on another machine; submitit waits as long for its own files
GRACE_SECONDS = 3.0  # for the jobs of a command that was stopped
FAILED_RANK_SECONDS = 10.0  # from the end of a rank other than 0 that has failed to the end of its task
RANK_ENDED_WELL = ("ok", "preempted")
# sacct's state of a job -> status in the record; all other states are `killed`.
SLURM_STATES = {"TIMEOUT": "timeout", "OUT_OF_MEMORY": "oom"}


# --- in the command -------------------------------------------------------------------------------


@contextlib.contextmanager
def followed(sweep: sweeps.Sweep, folder: Path | None) -> Iterator[None]:
    """In the block, print the notes of a sweep's jobs under submitit, and wait for all jobs even if one fails.

    folder: the sweep's, or None if the command is no sweep. Without effect for Hydra's other launchers. Raises
    HydraException with submitit's reason if submitit cannot start the jobs.
    """
    if folder is None or not host.has("submitit"):
        yield
        return
    follower = Follower(sweep, folder)

    def start_and_follow(start: Callable, rows: tuple) -> list[Followed]:
        with _environment_of_jobs():
            jobs = start()
            all_overrides, numbers = submitit_private.overrides_and_numbers(rows)
            return [follower.follow(*submitted) for submitted in zip(jobs, all_overrides, numbers)]

    try:
        with submitit_private.jobs_wrapped(start_and_follow):
            yield
    except KeyboardInterrupt:
        follower.stop()
        raise
    except Exception as error:
        if not submitit_private.raised_by_submitit(error):
            raise
        raise HydraException(f"submitit cannot start the jobs: {str(error).strip()}") from None


@contextlib.contextmanager
def _environment_of_jobs() -> Iterator[None]:
    """In the block, set what the processes that submitit starts inherit.

    PYTHONPATH and PYTHONSAFEPATH: another interpreter imports `legroom` from here, and nothing from the current folder.
    SIGINT is blocked: the command handles a terminal's Ctrl-C, and submitit's controllers must not end on it.
    """
    variables = {"PYTHONPATH": interpreter.python_path(), "PYTHONSAFEPATH": "1"}
    before = dict(os.environ)
    os.environ |= variables
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # a pending one is delivered here


class Follower:
    """The submitted jobs of a sweep, in the command that waits for them. folder: the sweep's."""

    def __init__(self, sweep: sweeps.Sweep, folder: Path):
        self.sweep = sweep
        self.folder = folder
        self.jobs: list[Followed] = []
        self.printed: dict[int, int] = {}  # number of a job -> how many of its lines have been printed
        self.problems: list[str] = []

    def follow(self, job: SubmititJob, overrides: list[str], number: int) -> Followed:
        """Add a job that submitit has started."""
        self.jobs.append(Followed(job, overrides, number, self))
        return self.jobs[-1]

    def print_notes(self) -> dict[int, dict[str, Any]]:
        """Print the lines that the jobs have noted since the last call. Returns number -> note."""
        notes = {note["job"]: note for note in self.sweep.jobs(self.folder)}
        for number, note in notes.items():
            lines = note["lines"][self.printed.get(number, 0) :]
            self.printed[number] = len(note["lines"])
            if note["status"] == sweeps.INVALID:  # all jobs have the same problems
                lines = [line for line in lines if line not in self.problems]
                self.problems += lines
                console.say_problems(lines)
            elif lines:
                console.say("\n".join(lines))
        return notes

    def stop(self) -> None:
        """Ctrl-C: end the jobs that run on this machine; print how to end those of a cluster, which continue."""
        running = [followed_job.job for followed_job in self.jobs if not followed_job.job.done()]
        if not running:
            return
        if self.jobs[0].local:
            _end_local(running)
            self.print_notes()
            return
        job_ids = " ".join(job.job_id for job in running)
        console.say(
            f"The jobs on the cluster continue: {job_ids}\nscancel {job_ids} ends them. When they have ended, "
            f"{invocation.command('report')} {self.folder} makes the table."
        )


class Followed:
    """A submitted job with the interface that Hydra's launcher expects of it."""

    def __init__(self, job: SubmititJob, overrides: list[str], number: int, follower: Follower):
        self.job = job
        self.overrides = overrides
        self.number = number
        self.follower = follower
        self.local = submitit_private.is_local(job)

    def results(self) -> list[JobReturn]:
        """Wait until the job has ended and its end is noted. The result that is returned is always the same."""
        pause_seconds = POLL_SECONDS if self.local else SHARED_POLL_SECONDS
        while not self.job.done():
            self.follower.print_notes()
            time.sleep(pause_seconds)
        deadline = time.monotonic() + (0 if self.local else LAG_SECONDS)
        while True:
            note = self.follower.print_notes().get(self.number)
            if note is not None and note["status"] != sweeps.STARTED:
                break
            if time.monotonic() >= deadline:
                self.write_post_mortem(note)
                self.follower.print_notes()
                break
            time.sleep(pause_seconds)
        return [JobReturn(status=JobStatus.COMPLETED)]

    def write_post_mortem(self, note: dict[str, Any] | None) -> None:
        """Write the record and the note of a job that ended without them. note: of its start, or None."""
        state = self.job.state.split()[0]  # 'CANCELLED by 1000'
        status = SLURM_STATES.get(state, "killed")
        message = "its process ended and left no record"
        if not self.local:
            message += f" ({state})"
        error_lines = (self.job.stderr() or "").strip().splitlines()
        last_line = error_lines[-1] if error_lines else "it printed no error"
        message += f": {last_line} ({self.job.paths.stderr})"
        sweep, folder = self.follower.sweep, self.follower.folder
        _, swept = sweeps.count_jobs(sweep)
        label = sweeps.distinguishing_overrides(self.overrides, swept)
        if note is None:  # the job's folder is unknown: its name depends on the machine on which the job ran
            line = f"{self.number + 1:>3}  {status:<13}{' '.join(label)}  {message}"
            sweep.note(folder, self.number, "", status, [line])
            return
        outcome = record_file.from_values(note["record"])
        hint = None
        if status == "oom":
            status, error = failures.out_of_memory(host.configuration(outcome.config), "load", "OutOfMemory", message)
            message, hint = error.message, error.hint
        outcome = post_mortem.write_post_mortem(
            launch.Job(outcome, run_folder.of_job(folder, note["key"])), status, message, hint
        )
        line = sweeps.job_line(outcome, self.number + 1, label)
        sweep.note(folder, self.number, note["key"], outcome.status, [line])


def _end_local(jobs: list[SubmititJob]) -> None:
    """Send SIGINT to the tasks, which write their records, and SIGKILL to those that have not ended in time."""
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
    for job in jobs:  # submitit's controllers, which end after their tasks
        with contextlib.suppress(psutil.TimeoutExpired, psutil.Error):
            psutil.Process(int(job.job_id)).wait(GRACE_SECONDS)


# --- in a task ------------------------------------------------------------------------------------


def enter(sweep: sweeps.Sweep) -> bool:
    """Whether this process is a task that submitit started; if so, set its signals and its rank.

    The tasks of a job are its ranks: they get the variables that a launcher would have set.
    """
    if sweep.pid == os.getpid() or "SUBMITIT_EXECUTOR" not in os.environ:
        return False
    from submitit import JobEnvironment
    from submitit.helpers import TorchDistributedEnvironment

    task = JobEnvironment()
    signal.signal(signal.SIGINT, _interrupt_once)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if task.cluster == "local":
        sweep.end_with_command(signal.SIGINT)  # submitit's controllers, and their tasks, would outlive it
    if task.num_tasks > 1:
        TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)
        if task.cluster == "local":  # the machine's own host name may not resolve
            os.environ["MASTER_ADDR"] = "127.0.0.1"
    return True


def exit_if_failed(status: str) -> None:
    """End a task whose rank has failed, so that srun ends the other ranks, which would wait for it.

    Other ranks than the first wait until that one has written the record. Without effect for a job of one rank.
    """
    rank_info = current_rank()
    if "SUBMITIT_EXECUTOR" not in os.environ or not rank_info.launched or status in RANK_ENDED_WELL:
        return
    if not rank_info.is_main:
        time.sleep(FAILED_RANK_SECONDS)
    raise SystemExit(1)  # submitit writes a result for what is an Exception, and lets the process end well


def _interrupt_once(*_: Any) -> None:
    """Handle the first SIGINT alone: Ctrl-C sends one from the terminal and one from the command.

    The second would interrupt the writing of the record.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextlib.contextmanager
def preemptible(in_task: bool) -> Iterator[Callable[[], None]]:
    """In the block, pass submitit's preemption signal to the run's SIGUSR1 handler, so that the run saves and stops.

    While the run has no such handler, submitit handles its signal itself. Yields a function to call after the run: it
    requeues the job if the signal came, and does not return then; otherwise it does nothing.
    """
    if not in_task:
        yield lambda: None
        return
    number = submitit_private.requeue_signal()
    requeue = signal.getsignal(number)
    received: list[tuple] = []  # the arguments of the handler

    def save_first(*arguments: Any) -> None:
        handler = signal.getsignal(signal.SIGUSR1)
        if callable(handler):
            received.append(arguments)
            handler(*arguments)
        elif callable(requeue):
            requeue(*arguments)

    def requeue_if_preempted() -> None:
        if received and callable(requeue):
            requeue(*received[0])

    signal.signal(number, save_first)
    try:
        yield requeue_if_preempted
    finally:
        signal.signal(number, requeue)
