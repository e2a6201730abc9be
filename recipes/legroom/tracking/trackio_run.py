"""tracker=trackio: a run in Trackio's database on this machine, or at the Space that TRACKIO_SPACE_ID names."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from legroom.tracking.interface import Job, Result, Say, flat, numbers

LABEL, PACKAGE, HAS_SWEEP_RUN = "Trackio", "trackio", False
TAKES_PAGE = False


def open_run(job: Job, say: Say) -> TrackioRun:
    """Begin a run."""
    return TrackioRun(job, say)


def sweep_line(folder: Path) -> str:
    """Nothing: each job says how to look at the project, which holds all jobs."""
    return ""


class TrackioRun:
    """A run in Trackio. See `interface.Run`."""

    def __init__(self, job: Job, say: Say):
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        import trackio  # pyright: ignore[reportMissingImports]  # not in `all`

        project = job.settings["project"]
        self.run = trackio.init(
            project,
            name=job.name,
            group=job.group,
            config=flat(job.config) | {"tags": ", ".join(job.tags)},
            embed=False,
            auto_log_gpu=False,  # nothing that measures beside us
            auto_log_cpu=False,
        )
        self.step = 0
        local = not os.environ.get("TRACKIO_SPACE_ID")
        say.where(f"Trackio: trackio show --project {shlex.quote(project)}", local=local)

    def log(self, values: dict[str, float], step: int) -> None:
        """See `interface.Run`."""
        self.step = step
        self.run.log(values, step=step)

    def finish(self, result: Result) -> None:
        """The numbers of the summary are points at the last step."""
        import trackio  # pyright: ignore[reportMissingImports]  # not in `all`

        self.run.log(numbers(result.summary), step=self.step)
        trackio.finish()
