"""Starts the workers of a job: a process for each rank, with a session of its own and a pipe to its parent."""

import contextlib
import pickle
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from legroom.jobs.fork_client import ForkedWorker, ForkServer
from legroom.machine import interpreter
from legroom.ranks.rank_info import RankInfo
from legroom.records import record, run_folder

WORKER_CODE = "import sys; from legroom.jobs.worker import entry; entry(int(sys.argv[1]))"


@dataclass
class Job:
    """One run: its record so far (configuration and environment), its folder, and which rank is to be started.

    folder: None on a rank other than 0 that a launcher started; rank 0 sends its own.
    """

    record: record.Record
    folder: Path | None
    rank_info: RankInfo = RankInfo()


@dataclass
class Running:
    """A worker that was started."""

    process: subprocess.Popen | ForkedWorker
    pipe: Connection
    rank_info: RankInfo


def start(job: Job, source: ForkServer | None = None) -> list[Running]:
    """Start the workers: all ranks of the job, or the rank of this process where a launcher started the ranks.

    source: what starts them; without one, each worker gets a new interpreter. Workers end when their pipe is closed.
    Raises as `ForkServer.start_worker`, which has launch.timeout_seconds to answer.
    """
    parallelism = job.record.config["parallelism"]
    world_size = parallelism["num_processes"]
    is_one_process = world_size == 1 and parallelism["kind"] in ("single", "dp")
    simulates_ranks = job.record.recipe == "estimate"
    if job.rank_info.launched or is_one_process or simulates_ranks:
        return [_start(job, source)]
    return _start_ranks(job, world_size, source)


def _start_ranks(job: Job, world_size: int, source: ForkServer | None) -> list[Running]:
    started: list[Running] = []
    with socket.create_server((RankInfo.address, 0)) as listener:
        port = listener.getsockname()[1]
        try:
            for rank in range(world_size):
                rank_info = RankInfo(rank, world_size, rank, world_size, port=port)
                started.append(_start(Job(job.record, job.folder, rank_info), source, listener))
        except BaseException:
            for running in started:
                running.pipe.close()  # which ends the worker
            raise
    return started


def _start(job: Job, source: ForkServer | None, listener: socket.socket | None = None) -> Running:
    """Start one worker and send it the job and, to rank 0, the socket on which it listens for the others."""
    parent_end, worker_end = socket.socketpair()
    with worker_end, open_log(job) as log:
        limit_seconds = job.record.config["launch"]["timeout_seconds"] or None
        start_worker = new_worker if source is None else source.start_worker
        process = start_worker(worker_end, log, limit_seconds)
    pipe = Connection(parent_end.detach())
    with contextlib.suppress(OSError):  # a worker that has died already: its supervisor notices
        pipe.send_bytes(pickle.dumps(job))
        if listener is not None and job.rank_info.is_main:
            reduction.send_handle(pipe, listener.fileno(), process.pid)
    return Running(process, pipe, job.rank_info)


def new_worker(pipe: socket.socket, log: IO[bytes], _: float | None = None) -> subprocess.Popen:
    """A worker in a new interpreter."""
    return interpreter.start_python(WORKER_CODE, pipe, stdout=log, stderr=log)


def open_log(job: Job) -> IO[bytes]:
    """The open file to which a rank's libraries print."""
    if job.folder is None:  # the worker opens its log when rank 0 has sent the folder
        return tempfile.TemporaryFile()
    return open(job.folder / run_folder.log_name(job.rank_info.rank), "wb")
