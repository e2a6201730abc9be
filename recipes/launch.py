"""Start a job: a fresh process in a session of its own, with a pipe between it and its parent."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from recipes import record

CHILD = "import sys; from recipes.worker import entry; entry(int(sys.argv[1]))"
LOG_FILE = "log.txt"  # what the libraries print


@dataclass
class Job:
    """One run: its record so far (nothing but configuration and environment), and its folder."""

    record: record.Record
    folder: Path


@dataclass
class Running:
    process: subprocess.Popen
    pipe: Connection


def start(job: Job) -> Running:
    """Start the worker. It gets the job through the pipe, and ends when the pipe's other end closes."""
    ours, theirs = socket.socketpair()
    root = str(record.PACKAGE_FOLDER.parent)
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    with open(job.folder / LOG_FILE, "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(theirs.fileno())], pass_fds=[theirs.fileno()],
            env=os.environ | {"PYTHONPATH": path}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True)  # Ctrl-C goes to the parent alone, and a whole session can be ended at once
    theirs.close()
    pipe = Connection(ours.detach())
    pipe.send_bytes(pickle.dumps(job))
    return Running(process, pipe)
