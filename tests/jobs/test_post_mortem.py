"""What is left of a job whose worker could not say how it ended, from made-up exits: no worker is started."""

from __future__ import annotations

import copy
import json
import signal

import pytest

from legroom.jobs import post_mortem
from legroom.jobs.post_mortem import WorkerExit
from legroom.machine import host
from legroom.records import record_file, run_folder
from legroom.records.messages import RankFailed
from legroom.records.record import Error

RAN_OUT = "the system ran out of memory"
OF_RANK_1 = RankFailed("failed", Error("forward", "ValueError", "shapes differ", rank=1))


@pytest.fixture(scope="module")
def composed(make_job):
    return make_job("device=cpu", "launch.timeout_seconds=60")


@pytest.fixture
def job(composed, tmp_path):
    made = copy.deepcopy(composed)
    made.folder = tmp_path
    return made


@pytest.mark.parametrize(
    "worker, cause, status, error",
    [
        (WorkerExit("exited", -9, "train", False), None, "killed", ("forward", "Killed", "SIGKILL")),
        (WorkerExit("exited", -11, "count", False), None, "killed", ("step", "Killed", "SIGSEGV")),
        (WorkerExit("exited", 7, "eval", False), None, "failed", ("eval", "WorkerDied", "exit code 7, and no record")),
        (WorkerExit("interrupted", 0, "save", False), None, "interrupted", ("save", "KeyboardInterrupt", "stopped by")),
        (WorkerExit("timeout", -9, "load", False), None, "timeout", ("load", "Timeout", "not done after 60 seconds")),
        (WorkerExit("preempted", -15, "load", False), None, "preempted", None),
        (WorkerExit("exited", -9, "train", False), OF_RANK_1, "failed", ("forward", "ValueError", "shapes differ")),
        (
            WorkerExit("exited", -9, "save", True),
            OF_RANK_1,
            "oom",
            (
                "save",
                "KernelOutOfMemory",
                f"{RAN_OUT}, of which it has 3.0 GiB, and killed the process (SIGKILL) while",
            ),
        ),
    ],
    ids=lambda value: value.phase + value.reason if isinstance(value, WorkerExit) else "",
)
def test_record_of_a_worker_without_one(job, monkeypatch, worker, cause, status, error):
    monkeypatch.setattr(host, "memory_bytes", lambda: 3 * 2**30)
    found = post_mortem.leave_record(job, worker, cause)
    assert record_file.read(job.folder) == found and found.status == status
    if error is None:
        assert found.error is None
        return
    assert (found.error.phase, found.error.type) == error[:2] and found.error.message.startswith(error[2])
    if worker.reason == "timeout":
        assert "launch.timeout_seconds" in found.error.hint
    if found.error.type == "WorkerDied":
        assert found.error.hint == f"Its output is in {job.folder / run_folder.LOG_FILE}."


@pytest.mark.parametrize(
    "code, log, status",
    [
        (-signal.SIGABRT, "terminate called: std::bad_alloc", "oom"),
        (1, "MemoryError", "oom"),
        (-signal.SIGSEGV, "std::bad_alloc", "killed"),
        (1, "MemoryError" + " " * post_mortem.END_OF_LOG_BYTES, "failed"),  # long before the end
        (1, None, "failed"),
    ],
)
def test_log_shows_out_of_memory(job, code, log, status):
    if log is not None:
        (job.folder / run_folder.LOG_FILE).write_text(log)
    found = post_mortem.leave_record(job, WorkerExit("exited", code, "train", False), None)
    assert found.status == status and (found.error.type == "BadAlloc") is (status == "oom")


def test_cut_lines_of_steps_do_not_count(job):
    rows = [{"step": n, "loss": 1 / n, "samples": 4, "tokens": 32} for n in (1, 2)]
    rows.insert(1, {"step": 1, "evaluation_loss": 0.5})
    (job.folder / run_folder.STEPS_FILE).write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 3, "lo')
    found = post_mortem.leave_record(job, WorkerExit("exited", -9, "train", False), None).training
    assert (found.steps, found.samples, found.tokens, found.losses, found.final_loss) == (2, 8, 64, [1.0, 0.5], 0.5)


def test_steps_of_an_earlier_attempt_do_not_count(job):
    (job.folder / run_folder.STEPS_FILE).write_text(json.dumps({"step": 1, "loss": 1.0, "samples": 4, "tokens": 32}))
    found = post_mortem.leave_record(job, WorkerExit("exited", -9, "load", False), None).training
    assert (found.steps, found.final_loss) == (0, None)


@pytest.mark.parametrize(
    "code, cause, said",
    [
        (0, None, []),
        (-9, None, ["the worker: SIGKILL, while memory was counted; the training had ended."]),
        (0, OF_RANK_1, ["rank 1: shapes differ, while memory was counted; the training had ended."]),
    ],
)
def test_written_result_stays(job, code, cause, said):
    job.record.status = "ok"
    record_file.write(job.record, job.folder)
    found = post_mortem.leave_record(job, WorkerExit("exited", code, "count", False), cause)
    assert found.status == "ok" and found.warnings == said and record_file.read(job.folder) == found


def test_lost_contact_has_the_cause(job):
    job.record.status, job.record.error = "failed", Error("forward", "DistNetworkError", "reset by peer")
    record_file.write(job.record, job.folder)
    left = WorkerExit("exited", 1, "train", False)
    assert post_mortem.leave_record(job, left, None).error.type == "DistNetworkError"
    own = RankFailed("failed", Error("load", "OSError", "mine", rank=0))
    assert post_mortem.leave_record(job, left, own).error.type == "DistNetworkError", "it says so itself"
    assert post_mortem.leave_record(job, left, OF_RANK_1).error.message == "shapes differ"
