"""The record of a worker that could not write its own, from what its parent saw."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path

from recipes.config import from_dict
from recipes.jobs import launch
from recipes.options import memory_hints
from recipes.records import record, record_file, run_folder
from recipes.records.record import Error, Record


def leave_record(
    job: launch.Job, ended: str, code: int, phase: str, kernel_kills: int, cause: tuple[str, Error] | None
) -> Record:
    """The record in the folder, with what only the parent knows."""
    outcome = _written(job.folder)
    several = cause is not None and (cause[1].rank > 0 or job.rank_info.launched)
    if outcome is None:
        outcome = _post_mortem(job, ended, code, phase, kernel_kills)
        if several and outcome.status != "oom":
            outcome.status, outcome.error = cause
        record_file.write(outcome, job.folder)
    elif outcome.status == "ok" and (code != 0 or several):  # the result was safe before the ledger's step
        how = f"rank {cause[1].rank}: {cause[1].message}" if several else f"the worker ended ({exit_text(code)})"
        outcome.warnings.append(f"{how} while memory was counted; the training itself was over.")
        record_file.write(outcome, job.folder)
    elif several:  # rank 0 only saw the others go
        outcome.status, outcome.error = cause
        record_file.write(outcome, job.folder)
    return outcome


def _written(folder: Path) -> Record | None:
    try:
        return record_file.read(folder)
    except (OSError, ValueError):
        return None


def _post_mortem(job: launch.Job, ended: str, code: int, phase: str, kernel_kills: int) -> Record:
    """The record of a worker that could not write its own, from what its parent saw."""
    outcome = job.record
    outcome.training = _steps_written(job.folder)
    where = {"train": "forward", "count": "step"}.get(phase, phase)  # a dead process does not say more
    if ended == "interrupted":
        outcome.status, outcome.error = "interrupted", Error(where, "KeyboardInterrupt", "stopped by the user")
    elif ended == "preempted":
        outcome.status = "preempted"
    elif ended == "timeout":
        limit = outcome.config["launch"]["timeout_seconds"]
        outcome.status = "timeout"
        outcome.error = Error(
            where,
            "Timeout",
            f"not done after {limit:g} seconds",
            "Raise launch.timeout_seconds, or give it fewer steps with train.max_steps.",
        )
    elif code < 0 and kernel_kills() > kernel_kills:
        outcome.status = "oom"
        outcome.error = Error(
            where,
            "KernelOutOfMemory",
            f"the system ran out of memory and ended it ({exit_text(code)})",
            memory_hints.memory_hint(from_dict(outcome.config)),
        )
    elif code < 0:
        outcome.status, outcome.error = "killed", Error(where, "Killed", exit_text(code))
    else:
        outcome.status = "failed"
        outcome.error = Error(
            where,
            "WorkerDied",
            f"{exit_text(code)} and left no record",
            f"Its last words are in {job.folder / run_folder.LOG_FILE}.",
        )
    return outcome


def write_post_mortem(job: launch.Job, status: str, why: str, hint: str | None) -> Record:
    """The record of a job whose parent is gone too: what its worker wrote, or what its steps tell.

    status, why, hint: for the latter, from whoever saw it end. Raises OSError when the folder cannot be written.
    """
    outcome = _written(job.folder)
    if outcome is None:
        outcome = job.record
        outcome.training = _steps_written(job.folder)
        where = "forward" if outcome.training.steps else "load"
        outcome.status, outcome.error = status, Error(where, status.capitalize(), why, hint)
        record_file.write(outcome, job.folder)
    return outcome


def exit_text(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _steps_written(folder: Path) -> record.Training:
    """What steps.jsonl holds of a training; a half-written last line does not count."""
    rows = []
    with contextlib.suppress(OSError, ValueError):
        for line in Path(folder, run_folder.STEPS_FILE).read_text().splitlines():
            rows.append(json.loads(line))
    losses = [row["loss"] for row in rows]
    return record.Training(
        len(rows),
        sum(row["samples"] for row in rows),
        sum(row["tokens"] for row in rows),
        losses,
        losses[-1] if losses else None,
    )


def kernel_kills() -> int:
    """How many processes Linux has ended for want of memory since it started; 0 elsewhere."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
