"""The trackers that keep runs on this machine or at a server of one's own: TensorBoard and MLflow."""

import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from legroom.tracking.run import Job, Result, Run, flat

FOLDER = "tensorboard"  # in the run's folder
REMOTE = ("http", "databricks")  # how the address of MLflow's server begins; a database's does not
PARAMETERS_AT_ONCE, LONGEST_PARAMETER = 100, 6000  # MLflow's bounds


class TensorboardRun(Run):
    """tracker=tensorboard: an event file in the run's folder, written without TensorFlow and without torch."""

    label = "TensorBoard"

    def __init__(self, job: Job, trouble: Callable[[str], None]):
        from tensorboard.summary import Writer  # pyright: ignore[reportMissingImports]  # may be missing

        self.make_writer = Writer
        self.writer: Any = None  # from the first point on
        self.folder = Path(job.folder, FOLDER)
        self.where = f"tensorboard --logdir {shlex.quote(str(self.folder))}"

    def log(self, values: dict[str, float], step: int) -> None:
        """The first points begin the file, and remove that of the training that is resumed: its steps come again."""
        if self.writer is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.writer = self.make_writer(str(self.folder))
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def finish(self, result: Result) -> None:
        """A run without a step, as a resume that was refused, leaves an earlier event file as it is."""
        if self.writer is not None or not self.folder.exists():
            super().finish(result)
        if self.writer is not None:
            self.writer.close()

    @staticmethod
    def sweep_line(folder: Path) -> str:
        """All runs of a sweep beside each other."""
        if not any(folder.glob(f"*/{FOLDER}")):
            return ""
        return f"tensorboard --logdir {shlex.quote(str(folder))}"


class MlflowRun(Run):
    """tracker=mlflow: a run in mlflow.db in the working directory, or in what MLFLOW_TRACKING_URI names."""

    label = "MLflow"
    where = "mlflow ui"

    def __init__(self, job: Job, trouble: Callable[[str], None]):
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        import mlflow  # pyright: ignore[reportMissingImports]  # not in `all`

        self.mlflow = mlflow
        self.client = mlflow.MlflowClient()
        experiment = mlflow.set_experiment(job.settings["project"])  # made where there is none
        tags = {}
        if job.group:
            tags["group"] = job.group
        if job.tags:
            tags["tags"] = ", ".join(job.tags)
        self.id = self.client.create_run(experiment.experiment_id, run_name=job.name, tags=tags).info.run_id
        parameters = [(key, str(value)[:LONGEST_PARAMETER]) for key, value in flat(job.config).items()]
        for first in range(0, len(parameters), PARAMETERS_AT_ONCE):
            mlflow.log_params(dict(parameters[first : first + PARAMETERS_AT_ONCE]), run_id=self.id)
        self.local = not os.environ.get("MLFLOW_TRACKING_URI", "").startswith(REMOTE)

    def log(self, values: dict[str, float], step: int) -> None:
        self.mlflow.log_metrics(values, step=step, run_id=self.id)

    def finish(self, result: Result) -> None:
        super().finish(result)
        self.client.set_tag(self.id, "status", str(result.summary.get("status")))
        self.client.set_terminated(self.id, "FAILED" if result.exit_code else "FINISHED")

    @staticmethod
    def sweep_line(folder: Path) -> str:
        """The experiment holds all jobs."""
        return "mlflow ui"
