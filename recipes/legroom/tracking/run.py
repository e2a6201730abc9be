"""A run at a tracker: what each tracker's class has, and what it is given.

The trackers of the menu are in the table `process.TRACKERS`. A further one is a subclass of `Run`, an entry there and a
YAML file in `conf/tracker/`.
"""

import abc
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECRETS = ("WANDB_API_KEY", "HF_TOKEN", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")


@dataclass(frozen=True)
class Job:
    """A run, as a tracker sees it when it begins.

    settings: the keys of the option. folder: the run's, absolute. group: the sweep's name.
    config: what the record says of the configuration and of the machine. earlier: the stamp of the steps.jsonl that
    another attempt has left (`process.stamp`).
    """

    tracker: str
    settings: dict[str, Any]
    folder: str
    name: str
    group: str | None
    tags: list[str]
    config: dict[str, Any]
    earlier: tuple[int, int] | None


@dataclass(frozen=True)
class Result:
    """What a run came to. summary: flat."""

    summary: dict[str, Any]
    exit_code: int


class Run(abc.ABC):
    """A run at a tracker, made in the tracker's process, where alone the package is imported.

    What it raises becomes a warning of the job.
    label: its name on the screen.
    where: for the screen, where the run can be seen. local: that names files of this machine, so that a sweep has one
    line for all of its jobs. send_later: the command that sends what could not be sent. step: the last one logged.
    """

    label = ""
    where = ""
    send_later = ""
    local = True
    step = 0

    @abc.abstractmethod
    def __init__(self, job: Job, trouble: Callable[[str], None]):
        """Begin the run. trouble: takes a warning; each text is passed on once."""

    @abc.abstractmethod
    def log(self, values: dict[str, float], step: int) -> None:
        """Log the figures of a step; figures that are not numbers are nan."""

    def finish(self, result: Result) -> None:
        """End the run, and wait until everything is stored.

        Here the numbers of the summary become points at the last step, for trackers without a place for results.
        """
        numbers: dict[str, float] = {
            key: value for key, value in result.summary.items() if isinstance(value, (int, float))
        }
        self.log(numbers, self.step)

    @staticmethod
    def sweep_line(folder: Path) -> str:
        """What to type to look at a sweep in this folder, or to send it. Imports no package."""
        return ""  # each job says how to look at the project, which holds all jobs


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, with keys like `train/seed`; None is left out."""
    flattened: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flattened |= flat(value, f"{prefix}{key}/")
        elif value is not None:
            flattened[f"{prefix}{key}"] = value
    return flattened


def reason(error: BaseException | str) -> str:
    """An error in one line, without anything that could be a key or a password."""
    text = " ".join((str(error) or type(error).__name__).split())
    text = text.partition(" Consider increasing")[0].rstrip(".")  # advice about a setting that is ours
    for name in SECRETS:
        secret = os.environ.get(name)
        if secret:
            text = text.replace(secret, "***")
    text = re.sub(r"//[^/\s@]+@", "//***@", text)  # a proxy's password
    return re.sub(r"[A-Za-z0-9_+=-]{40,}", "***", text)[:300]  # keys have 40 characters or more
