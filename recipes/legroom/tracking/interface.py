"""What a tracker's module offers, and what it is given.

`recipes/legroom/tracking/<option>_run.py` of an option of the menu `tracker` has

    LABEL, PACKAGE            its name on the screen; the package to install
    TAKES_PAGE                whether it can hold the page of a run
    HAS_SWEEP_RUN             whether a sweep has a run of its own, with its table and pictures
    open_run(job, say)        begins a run; called in the tracker's process, where the package may be imported
    sweep_line(folder)        what to type to look at a sweep, or to send it; "" for nothing. Imports no package

so that a new tracker is one module and one YAML file. What `open_run` and a run raise becomes a warning of the job.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Job:
    """A run, as a tracker sees it when it begins.

    settings: the keys of the option. folder: the run's, absolute. kind: run or sweep. group: the sweep's name.
    config: what the record says of the configuration and of the machine.
    """

    tracker: str
    settings: dict[str, Any]
    folder: str
    name: str
    kind: str
    group: str | None
    tags: list[str]
    config: dict[str, Any]


@dataclass(frozen=True)
class Result:
    """What a run came to. summary: flat. table: a CSV file of a sweep. pictures: PNG files of a sweep.

    page: a page (HTML) that stands alone; it is removed when the run has ended.
    """

    summary: dict[str, Any]
    exit_code: int
    table: str | None = None
    pictures: list[str] = field(default_factory=list)
    page: str | None = None


class Run(Protocol):
    """A run at a tracker."""

    def log(self, values: dict[str, float], step: int) -> None:
        """Log the figures of a step; figures that are not numbers are nan."""

    def finish(self, result: Result) -> None:
        """End the run, and wait until everything is stored."""


class Say(Protocol):
    """Tells the parent where a run can be seen, and what went wrong."""

    def where(self, line: str, local: bool, send_later: str = "") -> None:
        """line: for the screen. local: it names files of this machine, so that a sweep has one line for all of its
        jobs. send_later: the command that sends what could not be sent."""

    def trouble(self, text: str) -> None:
        """A warning; each text is passed on once."""


def numbers(summary: dict[str, Any]) -> dict[str, float]:
    """The entries of a summary that are numbers, for trackers without a place for a run's results."""
    return {key: value for key, value in summary.items() if isinstance(value, (int, float))}


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, with keys like `train/seed`; None is left out."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}/")
        elif value is not None:
            found[f"{prefix}{key}"] = value
    return found
