"""Watch a job's workers, stop them, and see to it that a record is left whatever becomes of them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.connection import wait

from recipes.checkpoint import stop_request
from recipes.jobs import fork_client, launch, post_mortem
from recipes.ranks import failure_store
from recipes.records.record import Error, Record

GRACE_SECONDS = 0.6  # between asking a worker to stop and ending it; Ctrl-C must be over within a second
POLL_SECONDS = 0.2
# The process that torchrun is, also inside `accelerate launch`: it starts each rank itself, and outlives it.
LAUNCHER = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None


def run(job: launch.Job, hear: Callable, fork_server: fork_client.ForkServer | None = None) -> Record:
    """Run a job, all its ranks, to its end. hear(kind, values): called for each message of rank 0.

    fork_server: forks the workers, where many jobs are run; without one each gets a new interpreter.

    Returns the record that lies in the folder. Ctrl-C (KeyboardInterrupt) is an end like any other.
    Raises OSError when the folder cannot be written. A rank other than 0 that a launcher started leaves no
    record; what is returned says how it ended.
    """
    kernel_kills = post_mortem.kernel_kills()
    told = {"phase": "load"}
    failures: list[dict] = []  # what ranks said of their end, in the order in which it was heard

    def listen(kind, values):
        if kind == "failed":
            failures.append(values)
            return
        if kind == "phase":
            told["phase"] = values["phase"]
        with contextlib.suppress(OSError):  # a screen that is gone (`2>&1 | head`) is no reason to stop
            hear(kind, values)

    limit = job.record.config["launch"]["timeout_seconds"]
    workers: list[launch.Running] = []
    asked = stop_request.StopRequest()
    try:
        with asked.listening(job.record.config["save"]["on_signal"]):
            workers = launch.start(job, fork_server)
            ended = _watch(workers, listen, failures, time.monotonic() + limit if limit else None, asked)
    except KeyboardInterrupt:
        ended = "interrupted"
    with _undisturbed():  # a second Ctrl-C must not cost the record
        if ended == "interrupted":
            _ask_to_stop(workers, listen, failures)
        died = {w.rank_info.rank: w.process.returncode for w in workers if w.process.poll() is not None}
        for worker in workers:
            _end(worker)
        code = workers[0].process.returncode if workers else 0
        if asked.to_stop and ended == "exited" and -signal.SIGTERM in died.values():
            ended, failures = "preempted", []  # before it had learnt to listen: nothing was trained
        if LAUNCHER not in (None, os.getppid()) and not asked.listens:
            failures = [_by_the_launcher(f) if f["lost"] else f for f in failures]
        cause = _cause(failures, died) if ended == "exited" or failures else None
        if job.rank_info.is_main:
            return post_mortem.leave_record(job, ended, code, told["phase"], kernel_kills, cause)
        outcome = job.record
        outcome.status = "interrupted" if ended == "interrupted" else "ok" if code == 0 else "failed"
        if cause is not None:
            outcome.status, outcome.error = cause
            if not failures:  # it died without a word: rank 0 cannot know of whom
                failure_store.publish_failure(
                    job.rank_info, {"status": outcome.status, "error": asdict(outcome.error), "lost": False}
                )
        return outcome


def _by_the_launcher(failure: dict) -> dict:
    """What a rank says that lost contact because others heard before it that the launcher was killed."""
    error = failure["error"] | {"type": "KeyboardInterrupt", "message": "the launcher was killed"}
    return failure | {"status": "interrupted", "error": error}


def _cause(failures: list[dict], died: dict[int, int]) -> tuple[str, Error] | None:
    """(status, error) of the rank that took the others down: the first that did not merely lose contact.

    failures: what ranks said. died: exit code of each rank that ended by itself.
    """
    first = next((f for f in failures if not f["lost"]), None)
    silent = sorted(
        rank for rank, code in died.items() if code != 0 and rank not in {f["error"]["rank"] for f in failures}
    )
    if first is None and silent:
        code = died[silent[0]]
        return "killed" if code < 0 else "failed", Error(
            "step", "Killed" if code < 0 else "WorkerDied", post_mortem.exit_text(code), rank=silent[0]
        )
    first = first or next(iter(failures), None)
    return (first["status"], Error(**first["error"])) if first else None


@contextlib.contextmanager
def _undisturbed():
    """Leave Ctrl-C and its relatives unheard for a moment."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    if threading.current_thread() is not threading.main_thread():  # handlers belong to the main thread
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(
    workers: list[launch.Running],
    hear: Callable,
    failures: list,
    deadline: float | None,
    asked: stop_request.StopRequest | None = None,
) -> str:
    """Listen until the workers are gone: 'exited', 'timeout' at the deadline, or 'interrupted' when the launcher is.

    What `asked` hears is passed on. Once one has failed, the others have a moment left: they may have something to say,
    or wait for ever.
    """
    last_words, passed_on = None, False
    while True:
        if asked is not None and LAUNCHER not in (None, os.getppid()):  # killed: nothing else would end its ranks
            if not asked.listens:
                return "interrupted"
            asked.to_stop = True
        if asked is not None and asked.to_stop and not passed_on:
            passed_on = True
            for worker in workers:
                with contextlib.suppress(ProcessLookupError):
                    worker.process.send_signal(signal.SIGTERM)
        now = time.monotonic()
        if deadline is not None and now > deadline:
            return "timeout"
        codes = [worker.process.poll() for worker in workers]  # asked first, so that their last words are still read
        for worker in workers:
            with contextlib.suppress(EOFError, ConnectionResetError):
                while worker.pipe.poll(0):
                    hear(*worker.pipe.recv())
        if None not in codes:
            return "exited"
        if last_words is None and (failures or any(codes)):
            last_words = now + failure_store.GRACE_SECONDS
        # Under a launcher one worker is ours; one that waits on a device does not see that the others are gone.
        others = len(workers) > 1 or any(f["error"]["rank"] != workers[0].rank_info.rank for f in failures)
        if last_words is not None and now > last_words and others:
            return "exited"
        open_pipes = {worker.pipe: worker for worker, code in zip(workers, codes) if code is None}
        for pipe in wait(list(open_pipes), timeout=POLL_SECONDS):
            try:
                hear(*pipe.recv())
            except (EOFError, ConnectionResetError):  # it closed its end: it is about to be gone
                with contextlib.suppress(Exception):
                    open_pipes[pipe].process.wait(POLL_SECONDS)


def _ask_to_stop(workers: list[launch.Running], hear: Callable, failures: list) -> None:
    """SIGINT, and a moment to write the record."""
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            worker.process.send_signal(signal.SIGINT)
    if workers:
        _watch(workers, hear, failures, time.monotonic() + GRACE_SECONDS)


def _end(running: launch.Running) -> None:
    """Leave nothing of the worker's session behind, loader processes included."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(running.process.pid, signal.SIGKILL)
    running.process.wait()
    running.pipe.close()
