"""Supervises the workers of a job: passes their messages on, ends them, and makes sure that a record is left."""

import contextlib
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import wait

from legroom.checkpoint import stop_request
from legroom.jobs import fork_client, launch, post_mortem
from legroom.jobs.post_mortem import WorkerExit
from legroom.machine.interpreter import exit_text
from legroom.ranks import failure_store
from legroom.records.messages import (
    Message,
    PhaseStarted,
    RankFailed,
    RankPreempted,
    RecordUnwritten,
    Shown,
    WarningRaised,
)
from legroom.records.record import Error, Record

GRACE_SECONDS = 0.6  # between SIGINT and SIGKILL: a run must end within a second of Ctrl-C
POLL_SECONDS = 0.2
EXIT_SECONDS = 30.0  # how long a worker that has closed its pipe may take to end: freeing its memory takes a while
KILL_SECONDS = 10.0  # how long a worker may take to end once it is killed: one that waits inside a driver may never end
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)  # signals that end a run
STOPPING = (
    "Asked to stop: the training step is finished first, and a checkpoint saved. Ctrl-C, or kill -INT {}, ends the run "
    "at once and without it."
)
# The parent's process id under torchrun (also inside `accelerate launch`), which starts each rank itself; else None.
LAUNCHER_PID = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None


def run(job: launch.Job, on_message: Callable[[Message], None], source: fork_client.ForkServer | None = None) -> Record:
    """Run a job, with all the ranks that it starts, to its end.

    on_message: called with each message of rank 0, except failures.
    source: what starts the workers, for example a fork server; without one each worker gets a new interpreter.

    Returns the record, which is also in the job's folder. Ctrl-C (KeyboardInterrupt) ends the job with a record. A rank
    other than 0 that a launcher started writes no record; the record that is returned says how the rank ended.
    Raises OSError when the folder cannot be written; UnwrittenRecord, which has the record, if that is so at the end.
    """
    kernel_kills = post_mortem.kernel_kills()
    supervisor = Supervisor(job, on_message)
    reason = supervisor.run_workers(source)
    with stop_request.handled(ENDING, signal.SIG_IGN):  # a second Ctrl-C must not cost the record
        return supervisor.conclude(reason, kernel_kills)


class Supervisor:
    """The workers of one job, from their start to the record that is left."""

    def __init__(self, job: launch.Job, on_message: Callable[[Message], None]):
        self.job = job
        self.workers: list[launch.Running] = []
        self.phases: dict[int, str] = {}  # the last phase that each rank entered
        config = job.record.config  # an estimate has nothing to save
        self.saves_on_signal = config["save"]["on_signal"] and job.record.recipe != "estimate"
        self.failures: list[RankFailed] = []  # in the order of arrival
        self.preempted: list[int] = []  # ranks other than 0 that a signal has stopped, and that have saved
        self.unwritten: Record | None = None  # the record that rank 0 could not write
        self._closed_at: dict[int, float] = {}  # time.monotonic() by rank, of workers that closed their pipe
        self._on_message = on_message
        self._stop = stop_request.StopRequest()

    def run_workers(self, source: fork_client.ForkServer | None) -> str:
        """Start the workers and watch them. Returns 'exited', 'timeout', 'interrupted' or 'preempted'."""
        config = self.job.record.config
        limit_seconds = config["launch"]["timeout_seconds"]
        try:
            with self._stop.listening():
                deadline = time.monotonic() + limit_seconds if limit_seconds else None
                self._start_workers(source)
                return self._watch(deadline, forward_stop=True)
        except KeyboardInterrupt as error:  # Ctrl-C, or a signal before `listening`, whose name it has
            self._stop.signal = error.args[0] if error.args else None
            return "interrupted"
        except TimeoutError:  # the source of workers hangs
            return "timeout"

    def _start_workers(self, source: fork_client.ForkServer | None) -> None:
        """Start the workers; in new interpreters if the source has ended."""
        try:
            self.workers = launch.start(self.job, source)
        except fork_client.ServerEnded as error:
            text = f"the process that starts workers has ended ({error}), so this job ran in a new process."
            self.job.record.warnings.append(text)
            with contextlib.suppress(OSError):
                self._on_message(WarningRaised(text))
            self.workers = launch.start(self.job)

    def conclude(self, reason: str, kernel_kills: int) -> Record:
        """End what is left of the workers and return the record.

        reason: what `run_workers` returned. kernel_kills: `post_mortem.kernel_kills()` before the job.
        """
        if reason == "interrupted" and self.workers:
            self._signal_workers(signal.SIGINT)
            self._watch(time.monotonic() + GRACE_SECONDS)
        exit_codes = {}  # by rank, of workers that have ended by themselves
        for worker in self.workers:
            code = worker.process.poll()
            if code is not None:
                exit_codes[worker.rank_info.rank] = code
        self._receive_all()  # after the poll, as in `_watch`
        for worker in self.workers:
            _end(worker)
        if self._stop.to_stop and reason == "exited" and self._only_lost_contact():
            reason = "preempted"  # ranks of other supervisors were ended before their first step
            self.failures = []
        if _launcher_is_gone() and not self.saves_on_signal:
            self.failures = [_launcher_killed(failure) for failure in self.failures]
        cause = None
        if reason == "exited" or self.failures:
            cause = find_cause(self.failures, exit_codes)
        code = self._exit_code()
        if not self.job.rank_info.is_main:
            return self._nonzero_rank_record(reason, code, cause)
        out_of_memory = code < 0 and post_mortem.kernel_kills() > kernel_kills
        worker = WorkerExit(reason, code, self.phase, out_of_memory, self._stop.signal)
        return post_mortem.leave_record(self.job, worker, cause, self.unwritten)

    def _exit_code(self) -> int:
        """Of the worker, of several that of rank 0, once all were ended; 0 where none has started."""
        if not self.workers:
            return 0
        code = self.workers[0].process.returncode
        if code is None:  # it was killed, and waits inside a driver
            return -signal.SIGKILL
        return code

    def _nonzero_rank_record(self, reason: str, code: int, cause: RankFailed | None) -> Record:
        """How a rank other than 0 ended, under a launcher. Published here if the worker could not do so itself."""
        outcome = self.job.record
        if reason in ("interrupted", "preempted"):
            outcome.status = reason
        elif code != 0:
            outcome.status = "failed"
        else:
            outcome.status = "preempted" if self.preempted else "ok"
        if cause is not None:
            outcome.status, outcome.error = cause.status, cause.error
            if not self.failures:  # the worker died before it could publish its failure
                failure_store.publish_failure(self.job.rank_info, cause.to_dict())
        return outcome

    def _watch(self, deadline: float | None, forward_stop: bool = False) -> str:
        """Receive messages until all workers have exited.

        Returns 'exited', 'timeout' at the deadline (time.monotonic()), or 'interrupted' if the launcher was killed and
        the job saves on no signal. With forward_stop, a request to stop is forwarded to the workers as SIGTERM once all
        of them train. Before, nothing has been trained that could be saved, and 'preempted' is returned at once; a job
        that saves on no signal, as an estimate, is 'interrupted'.
        Once one rank has failed, the others get GRACE_SECONDS of the failure store: they may still report an error, or
        wait for the failed rank forever.
        """
        grace_end = None
        while True:
            if forward_stop and _launcher_is_gone():  # nothing else would end its ranks
                self._stop.to_stop = True
            if forward_stop and self._stop.to_stop:
                if not self.saves_on_signal:
                    return "interrupted"
                if self._is_loading():
                    return "preempted"
                self._signal_workers(signal.SIGTERM)
                forward_stop = False
                if self.phase == "train":  # a later one is left at once
                    self._on_message(Shown(STOPPING.format(os.getpid())))
            now = time.monotonic()
            if deadline is not None and now > deadline:
                return "timeout"
            # Poll the processes before the pipes, so that the last messages of a process that has exited are read.
            running = [worker for worker in self.workers if not self._has_ended(worker)]
            self._receive_all()
            if not running:
                return "exited"
            if grace_end is None and (self.failures or any(worker.process.returncode for worker in self.workers)):
                grace_end = now + failure_store.GRACE_SECONDS
            if grace_end is not None and now > grace_end and self._another_rank_failed():
                return "exited"
            self._wait_for_message(running)

    @property
    def phase(self) -> str:
        """The last phase that the worker entered, of several that of rank 0."""
        rank = self.workers[0].rank_info.rank if self.workers else 0
        return self.phases.get(rank, "load")

    def _is_loading(self) -> bool:
        """Whether some rank has not come to its first step, so that no rank has taken one."""
        return any(self.phases.get(worker.rank_info.rank, "load") == "load" for worker in self.workers)

    def _only_lost_contact(self) -> bool:
        """Whether the workers only saw that ranks of another supervisor had ended."""
        return bool(self.failures) and all(failure.lost_contact for failure in self.failures)

    def _has_ended(self, worker: launch.Running) -> bool:
        """Whether a worker has exited, or closed its pipe EXIT_SECONDS ago."""
        closed_at = self._closed_at.get(worker.rank_info.rank, math.inf)
        return worker.process.poll() is not None or time.monotonic() > closed_at + EXIT_SECONDS

    def _another_rank_failed(self) -> bool:
        """Whether a worker may be waiting for a rank that failed. Under a launcher the supervisor has one worker."""
        own_rank = self.workers[0].rank_info.rank
        return len(self.workers) > 1 or any(failure.error.rank != own_rank for failure in self.failures)

    def _wait_for_message(self, running: list[launch.Running]) -> None:
        """Handle the next message of each worker that has one, after POLL_SECONDS at the latest."""
        workers = {worker.pipe: worker for worker in running}
        for pipe in wait(list(workers), timeout=POLL_SECONDS):
            try:
                self._handle(pipe.recv(), workers[pipe].rank_info.rank)  # type: ignore[union-attr,index]  (of `workers`)
            except (EOFError, OSError):  # the worker closed its end, maybe inside a message: it is about to exit
                worker = workers[pipe]  # type: ignore[index]
                self._closed_at.setdefault(worker.rank_info.rank, time.monotonic())
                with contextlib.suppress(Exception):
                    worker.process.wait(POLL_SECONDS)

    def _receive_all(self) -> None:
        """Handle every message that has arrived."""
        for worker in self.workers:
            with contextlib.suppress(EOFError, OSError):
                while worker.pipe.poll(0):
                    self._handle(worker.pipe.recv(), worker.rank_info.rank)

    def _handle(self, message: Message, rank: int) -> None:
        """Takes a message of a rank. What others than the first say of their phases is for this class alone."""
        if isinstance(message, RankFailed):
            self.failures.append(message)
            return
        if isinstance(message, RankPreempted):
            self.preempted.append(rank)
            return
        if isinstance(message, RecordUnwritten):
            self.unwritten = message.record
            return
        if isinstance(message, PhaseStarted):
            self.phases[rank] = message.phase
            if rank != self.workers[0].rank_info.rank:
                return
        with contextlib.suppress(OSError):  # a terminal that is gone (`2>&1 | head`) is no reason to stop
            self._on_message(message)

    def _signal_workers(self, number: int) -> None:
        for worker in self.workers:
            with contextlib.suppress(ProcessLookupError):
                worker.process.send_signal(number)


def find_cause(failures: list[RankFailed], exit_codes: dict[int, int]) -> RankFailed | None:
    """The failure that took the other ranks down: the first that is more than lost contact; None if nothing failed.

    failures: what ranks reported, in the order of arrival. exit_codes: by rank, of workers that ended by themselves.
    """
    for failure in failures:
        if not failure.lost_contact:
            return failure
    reported = {failure.error.rank for failure in failures}
    silent = sorted(rank for rank, code in exit_codes.items() if code != 0 and rank not in reported)
    if silent:
        rank, code = silent[0], exit_codes[silent[0]]
        if code < 0:
            return RankFailed("killed", Error("step", "Killed", exit_text(code), rank=rank))
        return RankFailed("failed", Error("step", "WorkerDied", exit_text(code), rank=rank))
    return failures[0] if failures else None


def _launcher_is_gone() -> bool:
    """Whether the torchrun that started this process was killed."""
    return LAUNCHER_PID not in (None, os.getppid())


def _launcher_killed(failure: RankFailed) -> RankFailed:
    """The failure of a rank, which lost contact because another one noticed first that the launcher was killed."""
    if not failure.lost_contact:
        return failure
    error = replace(failure.error, type="KeyboardInterrupt", message="the launcher was killed")
    return replace(failure, status="interrupted", error=error)


def _end(worker: launch.Running) -> None:
    """Kill every process of the worker's session, its data loaders included, and wait KILL_SECONDS for the worker."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(worker.process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError, subprocess.TimeoutExpired):
        worker.process.wait(KILL_SECONDS)
    worker.pipe.close()
