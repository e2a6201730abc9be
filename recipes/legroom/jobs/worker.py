"""A worker: the process that runs one rank of a job and, on rank 0, writes the job's record.

A worker has a session of its own, so that Ctrl-C reaches only its parent. It prints to log.txt and sends messages
(`legroom.records.messages`) through a pipe. The heavy libraries are imported after the environment has been prepared.
"""

import contextlib
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing import reduction
from multiprocessing.connection import Connection

from legroom import levers
from legroom.checkpoint import stop_request
from legroom.config import Config
from legroom.jobs import failures, launch
from legroom.machine import host, worker_environment
from legroom.ranks import failure_store
from legroom.ranks.rank_info import RankInfo
from legroom.records import record_file
from legroom.records.messages import Message, PhaseStarted, Progress, RankFailed, RankPreempted, RecordUnwritten

Send = Callable[[Message], None]


def entry(descriptor: int) -> None:
    """Receive the job from the pipe and run it. Does not return."""
    pipe = Connection(descriptor)
    main(pickle.loads(pipe.recv_bytes()), pipe)


def main(job: launch.Job, pipe: Connection) -> None:
    """Run this rank's part of a job and, on rank 0, write the record. Does not return."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    listener = reduction.recv_handle(pipe) if job.rank_info.has_own_store and job.rank_info.is_main else None
    threading.Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()
    cfg = host.configuration(job.record.config)
    levers.load_rules()
    send = _sender(pipe)
    progress = Progress(send if job.rank_info.is_main else _phases_alone(send), job.record)
    code = 0
    try:
        run(cfg, job, progress, listener)
    except BaseException as error:  # also KeyboardInterrupt and SystemExit: every end of a job is in its record
        code = 1
        worker_environment.lift_memory_limit()
        _note_failure(cfg, job, error, progress.phase, send)
    if not job.rank_info.is_main and job.record.status == "preempted":
        with contextlib.suppress(OSError):
            send(RankPreempted())
    if job.rank_info.is_main:
        assert job.folder is not None
        try:
            record_file.write(job.record, job.folder)
        except OSError:
            try:
                send(RecordUnwritten(job.record))  # the parent tries again, and shows it in any case
            except OSError:
                code = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)  # everything is written; taking the libraries down would only cost time


def run(cfg: Config, job: launch.Job, progress: Progress, listener: int | None = None) -> None:
    """Train or estimate, as the recipe says, and fill in the record.

    listener: the socket on which rank 0 listens for the other ranks, where the parent has started them.
    """
    rank_info = job.rank_info
    if cfg.parallelism.one_process:  # also under a launcher that starts one rank
        rank_info = RankInfo()
    stop = stop_request.StopRequest()
    if cfg.save.on_signal:
        stop.look()
    worker_environment.prepare(cfg, rank_info)
    progress.enter("load", "loading libraries")
    from legroom.training import preload

    preload.import_libraries()
    if cfg.predicts:
        from legroom.foresight import estimate

        assert job.folder is not None
        estimate.run(cfg, job.record, job.folder, progress)
    else:
        from legroom.jobs import training_run

        training_run.run(cfg, job, rank_info, progress, stop, listener)


def _sender(pipe: Connection) -> Send:
    """A function that sends a message to the parent, from any thread."""
    lock = threading.Lock()

    def send(message: Message) -> None:
        with lock:
            pipe.send(message)

    return send


def _phases_alone(send: Send) -> Send:
    """Of a rank other than 0 its supervisor hears the phases, by which it knows what a signal interrupts."""

    def send_phases(message: Message) -> None:
        if isinstance(message, PhaseStarted):
            send(message)

    return send_phases


def _end_with_parent(pipe: Connection) -> None:
    """Kill this process group when the parent, which sends nothing after the job, closes the pipe."""
    with contextlib.suppress(EOFError, OSError):
        pipe.recv()
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _note_failure(cfg: Config, job: launch.Job, error: BaseException, phase: str, send: Send) -> None:
    """Print the traceback, put the error into the record, and report it to the other ranks."""
    with contextlib.suppress(OSError):  # the disk of the log may be full
        traceback.print_exc()
    status, reason = failures.describe(error, phase, cfg)
    reason.rank = job.rank_info.rank
    if job.record.status != "ok":  # ok: the result is written, and only the step of the memory ledger has failed
        job.record.status, job.record.error = status, reason
    if job.rank_info.world_size > 1:
        _report_failure(job.rank_info, RankFailed(status, reason, failure_store.lost_contact(error)), send)


def _report_failure(rank_info: RankInfo, failure: RankFailed, send: Send) -> None:
    """Report this rank's failure to its supervisor and, under a launcher, to ranks that have another supervisor."""
    with contextlib.suppress(OSError):
        send(failure)
    if not rank_info.launched or failure.status == "interrupted":
        return
    cause = None
    if failure.lost_contact:
        cause = failure_store.wait_for_failure(rank_info, failure_store.REPORT_TIMEOUT_SECONDS)
    if cause is None:
        failure_store.publish_failure(rank_info, failure.to_dict())
    elif rank_info.is_main:
        with contextlib.suppress(OSError):
            send(RankFailed.from_dict(cause))
