"""Start a job: a process for each rank, in a session of its own, with a pipe between it and its parent.

One run starts a new interpreter. Several runs share a nursery: a process that has imported the
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
from recipes.ranks import rank_info
from recipes.records import record, run_folder

WORKER_CODE = "import sys; from recipes.jobs.worker import entry; entry(int(sys.argv[1]))"


@dataclass
class Job:
    """One run: its record so far (nothing but configuration and environment), its folder, and its place among ranks.

    folder: None on a rank other than 0 that a launcher started; rank 0 tells it.
    """

    record: record.Record
    folder: Path | None
    place: rank_info.RankInfo = rank_info.RankInfo()


@dataclass
class Running:
    """A worker at work. process: has pid, returncode, poll(), wait(timeout) and send_signal(), as Popen."""

    process: Any
    pipe: Connection
    place: rank_info.RankInfo


def start(job: Job, nursery: fork_client.ForkServer | None = None) -> list[Running]:
    """Start the workers: all ranks of the job, or this process's own where a launcher started the ranks.

    They get the job through a pipe, and end when the pipe's other end closes.
    """
    if job.place.launched:
        return [_start(job, nursery)]
    count = job.record.config["parallelism"]["num_processes"]
    alone = count == 1 and job.record.config["parallelism"]["name"] in ("single", "dp")
    if alone or job.record.recipe == "estimate":  # which plays one rank of many in one process
        return [_start(job, nursery)]
    started = []
    with socket.create_server((rank_info.RankInfo.address, 0)) as listener:
        port = listener.getsockname()[1]
        try:
            for rank in range(count):
                place = rank_info.RankInfo(rank, count, rank, count, port=port)
                started.append(_start(Job(job.record, job.folder, place), nursery, listener))
        except BaseException:
            for running in started:
                running.pipe.close()  # which ends it
            raise
    return started


def _start(job: Job, nursery: fork_client.ForkServer | None, listener: socket.socket | None = None) -> Running:
    ours, theirs = socket.socketpair()
    with theirs, open_log(job) as log:
        if nursery is not None:
            process = nursery.fork(theirs, log)
        else:
            process = interpreter.start_python(WORKER_CODE, theirs, stdout=log, stderr=log)
    pipe = Connection(ours.detach())
    pipe.send_bytes(pickle.dumps(job))
    if listener is not None and job.place.main:
        reduction.send_handle(pipe, listener.fileno(), process.pid)
    return Running(process, pipe, job.place)


def open_log(job: Job):
    """The open file to which a rank's libraries print."""
    if job.folder is None:  # until rank 0 has told its folder
        return tempfile.TemporaryFile()
    return open(job.folder / run_folder.log_name(job.place.rank), "wb")
