"""Names of submitit and hydra-submitit-launcher that are not part of their public interface."""

from __future__ import annotations

import contextlib
import signal
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from legroom.compat.patching import patched

if TYPE_CHECKING:
    from submitit import Job


# One task of a job that dies ends all, on every node: the others would wait for it until the time limit.
SRUN_ARGUMENTS = ("--kill-on-bad-exit=1",)


def jobs_wrapped(wrap: Callable[[Callable, tuple], list]) -> contextlib.AbstractContextManager[None]:
    """Call wrap(start, rows) in place of `Executor.map_array`; start() submits the jobs.

    hydra-submitit-launcher raises on the first job that failed and has no hook, so the method is replaced. A launcher
    plugin that subclasses its launchers would need names of its own, and the names that people type would not reach it.
    """
    from submitit.core.core import Executor

    map_array = Executor.map_array

    def wrapped(executor, function, *rows):
        if getattr(executor, "cluster", None) == "slurm":
            typed = executor._executor.parameters.get("srun_args") or []
            executor.update_parameters(slurm_srun_args=[*SRUN_ARGUMENTS, *typed])
        return wrap(lambda: map_array(executor, function, *rows), rows)

    return patched(Executor, map_array=wrapped)


def overrides_and_numbers(rows: tuple) -> tuple[list[list[str]], list[int]]:
    """The overrides and the numbers of the jobs, from the arguments that hydra-submitit-launcher gives `map_array`."""
    return rows[0], rows[2]


def is_local(job: Job) -> bool:
    """Whether a job is a process of this machine (submitit's LocalJob)."""
    return hasattr(job, "_process")


def requeue_signal() -> int:
    """The number of the signal with which submitit announces the end of a job's time."""
    from submitit import JobEnvironment

    return getattr(signal, f"SIG{JobEnvironment.USR_SIG}")


def raised_by_submitit(error: BaseException) -> bool:
    """Whether an exception was raised in a module of submitit, which has no class of its own for all of them."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].f_globals.get("__name__", "").startswith("submitit.")
