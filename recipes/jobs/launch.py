"""Start a job: a process for each rank, in a session of its own, with a pipe between it and its parent.

One run starts a new interpreter. Several runs share a fork server: a process that has imported the
libraries once and forks a child for each job, so that a short job does not pay seconds of imports.
"""

from __future__ import annotations

import pickle
import socket
import tempfile
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from recipes.jobs import fork_client
from recipes.machine import interpreter
from recipes.ranks.rank_info import RankInfo
from recipes.records import record, run_folder

WORKER_CODE = "import sys; from recipes.jobs.worker import entry; entry(int(sys.argv[1]))"


@dataclass
class Job:
    """One run: its record so far (nothing but configuration and environment), its folder, and its place among ranks.

    folder: None on a rank other than 0 that a launcher started; rank 0 tells it.
    """

    record: record.Record
    folder: Path | None
    rank_info: RankInfo = RankInfo()


@dataclass
class Running:
    """A worker at work. process: has pid, returncode, poll(), wait(timeout) and send_signal(), as Popen."""

    process: Any
    pipe: Connection
    rank_info: RankInfo


def start(job: Job, fork_server: fork_client.ForkServer | None = None) -> list[Running]:
    """Start the workers: all ranks of the job, or this process's own where a launcher started the ranks.

    They get the job through a pipe, and end when the pipe's other end closes.
    """
    if job.rank_info.launched:
        return [_start(job, fork_server)]
    count = job.record.config["parallelism"]["num_processes"]
    alone = count == 1 and job.record.config["parallelism"]["name"] in ("single", "dp")
    if alone or job.record.recipe == "estimate":  # which plays one rank of many in one process
        return [_start(job, fork_server)]
    started = []
    with socket.create_server((RankInfo.address, 0)) as listener:
        port = listener.getsockname()[1]
        try:
            for rank in range(count):
                place = RankInfo(rank, count, rank, count, port=port)
                started.append(_start(Job(job.record, job.folder, place), fork_server, listener))
        except BaseException:
            for running in started:
                running.pipe.close()  # which ends it
            raise
    return started


def _start(job: Job, fork_server: fork_client.ForkServer | None, listener: socket.socket | None = None) -> Running:
    ours, theirs = socket.socketpair()
    with theirs, open_log(job) as log:
        if fork_server is not None:
            process = fork_server.fork(theirs, log)
        else:
            process = interpreter.start_python(WORKER_CODE, theirs, stdout=log, stderr=log)
    pipe = Connection(ours.detach())
    pipe.send_bytes(pickle.dumps(job))
    if listener is not None and job.rank_info.is_main:
        reduction.send_handle(pipe, listener.fileno(), process.pid)
    return Running(process, pipe, job.rank_info)


def open_log(job: Job):
    """The open file to which a rank's libraries print."""
    if job.folder is None:  # until rank 0 has told its folder
        return tempfile.TemporaryFile()
    return open(job.folder / run_folder.log_name(job.rank_info.rank), "wb")
