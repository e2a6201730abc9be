"""A sweep's jobs under joblib, whose processes must all live until each job has saved what it has.

joblib kills all of its processes where one ends. They are therefore born with a cluster's signals blocked: a run in one
of them hears them (`jobs.supervise`), one that waits for a job does not. The command hears them in a thread, passes
them on to the processes, and lets no further job begin. Where the command is killed, the processes end by themselves,
from their first moment on: without a job, joblib would let them wait for minutes.
"""

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

from legroom.cli import sweep as sweeps
from legroom.machine import host, signals


@contextlib.contextmanager
def stoppable(sweep: sweeps.Sweep, folder: Path | None) -> Iterator[None]:
    """In the block, a signal to the command ends the jobs of a sweep under joblib as it ends a single run.

    folder: the sweep's, or None if the command is no sweep. Without effect for Hydra's other launchers.
    """
    if folder is None or not (
        host.has("joblib") and host.has("hydra_plugins") and host.has("hydra_plugins.hydra_joblib_launcher")
    ):
        yield
        return
    from legroom.compat import joblib_private

    def stop_jobs(number: int) -> None:
        sweep.stop(folder)
        signals.send_to_children(number)

    ends_alone = functools.partial(sweeps.end_with_command, sweep)
    with joblib_private.launch_inside(lambda: signals.passed_to_a_thread(stop_jobs), ends_alone):
        yield
