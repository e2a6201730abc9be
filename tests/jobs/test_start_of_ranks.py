"""How a job's ranks and its folder are taken, and given back when that fails."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
from multiprocessing import reduction
from multiprocessing.connection import Connection
from types import SimpleNamespace

import pytest

from legroom.jobs import launch, run_lock


def test_ranks_that_were_started_end_where_another_cannot_be(make_job):
    class Source:
        """Starts rank 0, and is interrupted with rank 1."""

        ends = []

        def start_worker(self, pipe, log, seconds):
            if self.ends:
                raise KeyboardInterrupt
            self.ends.append(Connection(os.dup(pipe.fileno())))
            return SimpleNamespace(pid=os.getpid())

    job = make_job("device=cpu", "parallelism=ddp", "parallelism.num_processes=2")
    with pytest.raises(KeyboardInterrupt):
        launch.start(job, Source())
    (end,) = Source.ends
    sent = pickle.loads(end.recv_bytes())
    assert (sent.rank_info.rank, sent.rank_info.world_size, sent.rank_info.local_world_size) == (0, 2, 2)
    os.close(reduction.recv_handle(end))  # on which it listens for the others
    with pytest.raises(EOFError):  # which ends the worker
        end.recv_bytes()


def test_a_file_system_without_locks_is_trained_in_anyway(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with run_lock.hold(tmp_path / "new"):
        assert (tmp_path / "new").is_dir()
