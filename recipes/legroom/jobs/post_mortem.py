"""The record of a job whose worker could not write its own, made from what its parent saw."""

import contextlib
import copy
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from legroom.jobs import failures, launch
from legroom.machine import cgroups, host
from legroom.machine.interpreter import exit_text
from legroom.records import record, record_file, run_folder
from legroom.records.messages import RankFailed
from legroom.records.record import Error, Record
from legroom.units import GIB

# What is printed before a process ends that gets no memory: by C++ for an exception that nothing catches, by OpenMP for
# the stack of a thread, by Python for an error while it reports one.
OUT_OF_MEMORY_LINES = ("std::bad_alloc", "Thread creation failed", "MemoryError")
END_OF_LOG_BYTES = 2000
DOING = {"load": "while it loaded", "save": "while it saved", "eval": "while it evaluated"}


@dataclass(frozen=True)
class WorkerExit:
    """How the worker of rank 0 ended, as its supervisor saw it.

    reason: exited, interrupted, preempted or timeout. code: its exit code, negative for a signal.
    phase: the last phase that it entered. out_of_memory: the kernel killed processes for memory while it ran.
    signal: the name of the signal that asked its parent to stop; None for Ctrl-C.
    """

    reason: str
    code: int
    phase: str
    out_of_memory: bool
    signal: str | None = None


class UnwrittenRecord(OSError):
    """The record of a job could not be written. record: what it would have been."""

    def __init__(self, error: OSError, outcome: Record):
        super().__init__(error.errno, error.strerror, error.filename)
        self.record = outcome


def leave_record(
    job: launch.Job, worker: WorkerExit, cause: RankFailed | None, unwritten: Record | None = None
) -> Record:
    """The record in the job's folder, completed with what only the parent knows.

    cause: the failure that ended the job, if a rank failed. unwritten: the worker's record, which it could not write.
    Raises UnwrittenRecord when the folder cannot be written.
    """
    assert job.folder is not None, "rank 0 has the folder"
    written = None
    if unwritten is None:
        written = _written(job.folder)
    outcome = _completed(job, worker, cause, unwritten or copy.deepcopy(written))
    if outcome == written:
        return outcome
    try:
        record_file.write(outcome, job.folder)
    except OSError as error:
        raise UnwrittenRecord(error, outcome) from error
    return outcome


def _completed(job: launch.Job, worker: WorkerExit, cause: RankFailed | None, outcome: Record | None) -> Record:
    """What `leave_record` leaves. outcome: the worker's own record, which is changed, or None."""
    was_preempted = worker.reason == "preempted"
    if was_preempted and outcome is not None and outcome.status == "failed" and not outcome.training.steps:
        outcome = None  # it lost contact with ranks that were ended before their first step
    if cause is not None and cause.error.rank == 0 and not job.rank_info.launched:
        cause = None  # the worker's own record says so already
    if outcome is None:
        return _without_record(job, worker, cause)
    if outcome.status == "ok":
        # An estimate that was ended while it tried levers has left its verdict, and a warning of its own.
        ended_well = worker.code == 0 or outcome.recipe == "estimate"
        if cause is not None:
            text = f"rank {cause.error.rank}: {cause.error.message}"
        elif not ended_well:
            text = f"the worker: {exit_text(worker.code)}"
        else:
            return outcome
        # The result was written before the step of the memory ledger.
        outcome.warnings.append(f"{text}, while memory was counted; the training had ended.")
    elif cause is not None:  # rank 0 lost contact with the rank that failed
        outcome.status, outcome.error = cause.status, cause.error
    elif worker.signal is not None and outcome.status == "interrupted" and outcome.error is not None:
        outcome.error = _ended_by(worker.signal, outcome.error.phase)  # the worker was sent SIGINT
    return outcome


def _without_record(job: launch.Job, worker: WorkerExit, cause: RankFailed | None) -> Record:
    """The record of a job whose worker left none."""
    outcome = job.record
    if worker.phase != "load":  # while it loads, steps.jsonl is that of an earlier attempt
        outcome.training = _steps_written(Path(job.folder or ""))
    outcome.status, outcome.error = _explain(job, worker)
    if outcome.status == "preempted" and not outcome.training.steps:
        outcome.warnings.append(f"ended by {worker.signal or 'a signal'} before the first step: nothing was trained.")
    if cause is not None and outcome.status != "oom":
        outcome.status, outcome.error = cause.status, cause.error
    return outcome


def _explain(job: launch.Job, worker: WorkerExit) -> tuple[str, Error | None]:
    """(status, error) of a worker that left no record."""
    phase = {"train": "forward", "count": "step"}.get(worker.phase, worker.phase)  # nothing more precise is known
    if worker.reason == "interrupted":
        if worker.signal is not None:
            return "interrupted", _ended_by(worker.signal, phase)
        return "interrupted", Error(phase, "KeyboardInterrupt", "stopped by the user")
    if worker.reason == "preempted":
        return "preempted", None
    if worker.reason == "timeout":
        return "timeout", failures.out_of_time(host.configuration(job.record.config), phase)
    if worker.out_of_memory:
        message = f"{_no_system_memory()}, and killed the process ({exit_text(worker.code)}) "
        message += DOING.get(worker.phase, "while it trained")
        return failures.out_of_memory(host.configuration(job.record.config), phase, "KernelOutOfMemory", message)
    if worker.code in (-signal.SIGABRT, 1):
        line = _out_of_memory_line(job)
        if line is not None:
            message = f"the process ran out of host memory and could not report it ({line})"
            return failures.out_of_memory(host.configuration(job.record.config), phase, "BadAlloc", message)
    if worker.code < 0:
        return "killed", Error(phase, "Killed", exit_text(worker.code))
    hint = f"Its output is in {Path(job.folder or '', run_folder.LOG_FILE)}."
    return "failed", Error(phase, "WorkerDied", f"{exit_text(worker.code)}, and no record", hint)


def _no_system_memory() -> str:
    text = "the system ran out of memory"
    total = host.memory_bytes()
    if total:
        text += f", of which it has {total / GIB:.1f} GiB"
    return text


def _out_of_memory_line(job: launch.Job) -> str | None:
    """What the worker printed last where it got no memory; None where it printed nothing of the kind."""
    log = _end_of_log(job)
    for line in OUT_OF_MEMORY_LINES:
        if line in log:
            return line
    return None


def _ended_by(name: str, phase: str) -> Error:
    return Error(phase, name, f"ended by {name}")


def _end_of_log(job: launch.Job) -> str:
    """What the worker's libraries printed last."""
    with contextlib.suppress(OSError), open(Path(job.folder or "", run_folder.LOG_FILE), "rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - END_OF_LOG_BYTES))
        return log.read().decode(errors="replace")
    return ""


def write_post_mortem(job: launch.Job, status: str, message: str, hint: str | None) -> Record:
    """The record of a job whose parent has ended too: the one in its folder, or one made from steps.jsonl.

    status, message, hint: for the latter, from the process that noticed. Raises OSError when the folder cannot be
    written.
    """
    assert job.folder is not None
    outcome = _written(job.folder)
    if outcome is None:
        outcome = job.record
        outcome.training = _steps_written(job.folder)
        phase = "forward" if outcome.training.steps else "load"
        outcome.status = status
        outcome.error = Error(phase, status.capitalize(), message, hint)
        record_file.write(outcome, job.folder)
    return outcome


def _written(folder: Path) -> Record | None:
    """The record in a folder; None if there is none that can be read."""
    try:
        return record_file.read(folder)
    except (OSError, ValueError):
        return None


def _steps_written(folder: Path) -> record.Training:
    """The training that steps.jsonl holds; a last line that is cut off does not count."""
    training = record.Training()
    with contextlib.suppress(OSError, ValueError):
        for line in Path(folder, run_folder.STEPS_FILE).read_text().splitlines():
            row = json.loads(line)
            if "loss" not in row:  # an evaluation
                continue
            training.steps += 1
            training.samples += row["samples"]
            training.tokens += row["tokens"]
            training.losses.append(row["loss"])
            training.final_loss = row["loss"]
    return training


def kernel_kills() -> int:
    """How many processes Linux has killed for memory so far, those of our control groups twice; 0 on other systems."""
    return cgroups.entry(Path("/proc/vmstat"), "oom_kill") + cgroups.kills()
