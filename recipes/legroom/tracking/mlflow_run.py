"""tracker=mlflow: a run in MLflow's database, by default mlflow.db in the working directory (MLFLOW_TRACKING_URI)."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from legroom.tracking.interface import Job, Result, Say, flat, numbers

LABEL, PACKAGE, HAS_SWEEP_RUN = "MLflow", "mlflow", False
TAKES_PAGE = False
REMOTE = ("http", "databricks")
PARAMETERS_AT_ONCE, LONGEST_PARAMETER = 100, 6000  # MLflow's bounds


def open_run(job: Job, say: Say) -> MlflowRun:
    """Begin a run. Raises MlflowException where the database or the server cannot be reached."""
    return MlflowRun(job, say)


def sweep_line(folder: Path) -> str:
    """The command that shows the experiment, which holds all jobs."""
    return "mlflow ui"


class MlflowRun:
    """A run in MLflow. See `interface.Run`."""

    def __init__(self, job: Job, say: Say):
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.entities import Param  # pyright: ignore[reportMissingImports]  # not in `all`
        from mlflow.tracking import MlflowClient  # pyright: ignore[reportMissingImports]  # not in `all`

        self.client, self.step = MlflowClient(), 0
        tags = {"group": job.group, "kind": job.kind, "tags": ", ".join(job.tags)}
        self.id = self.client.create_run(
            _experiment(self.client, job.settings["project"]),
            run_name=job.name,
            tags={key: value for key, value in tags.items() if value},
        ).info.run_id
        parameters = [Param(key, str(value)[:LONGEST_PARAMETER]) for key, value in flat(job.config).items()]
        for first in range(0, len(parameters), PARAMETERS_AT_ONCE):
            self.client.log_batch(self.id, params=parameters[first : first + PARAMETERS_AT_ONCE])
        say.where("MLflow: mlflow ui", local=not os.environ.get("MLFLOW_TRACKING_URI", "").startswith(REMOTE))

    def log(self, values: dict[str, float], step: int) -> None:
        """See `interface.Run`."""
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]  # not in `all`

        self.step, now = step, int(time.time() * 1000)
        self.client.log_batch(self.id, metrics=[Metric(key, value, now, step) for key, value in values.items()])

    def finish(self, result: Result) -> None:
        """The numbers of the summary are points at the last step; the status is a tag."""
        self.log(numbers(result.summary), self.step)
        self.client.set_tag(self.id, "status", str(result.summary.get("status")))
        self.client.set_terminated(self.id, "FAILED" if result.exit_code else "FINISHED")


def _experiment(client: Any, name: str) -> str:
    """The id of an experiment, which is made where there is none. Jobs of a sweep may make it at the same time."""
    from mlflow.exceptions import MlflowException  # pyright: ignore[reportMissingImports]  # not in `all`

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return client.create_experiment(name)
        except MlflowException:
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    return found.experiment_id
