"""Changes of a command line that are tried by estimates: each made once, within a time, while somebody may watch.

Imports no torch until something is tried.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from legroom.records.record import FITS, Estimate, Record, verdict_of
from legroom.units import MIB


class TimeIsUp(Exception):
    """estimate.hint_seconds have passed."""


@dataclass(frozen=True)
class Trial:
    """Changes as overrides, and the record of their estimate; refused: why there is none."""

    changes: tuple[str, ...]
    outcome: Record | None
    refused: str = ""

    @property
    def record(self) -> Record:
        assert self.outcome is not None, self.refused
        return self.outcome

    @property
    def estimate(self) -> Estimate:
        assert self.record.estimate is not None, "an estimate for a GPU"
        return self.record.estimate

    @property
    def fits(self) -> bool:
        return self.outcome is not None and self.outcome.estimate is not None and verdict_of(self.estimate) == FITS

    @property
    def used_bytes(self) -> float:
        """The device's memory that is needed."""
        return (self.outcome and self.outcome.memory.device_used_bytes) or math.inf

    @property
    def rank(self) -> tuple[float, int]:
        """The fastest first, then the simplest."""
        return self.record.speed.step_seconds_median or math.inf, len(self.changes)

    def __str__(self) -> str:
        seconds = self.record.speed.step_seconds_median
        time = f", {seconds * 1000:,.0f} ms a step" if seconds else ""
        return f"{' '.join(self.changes)} ({self.estimate.margin_bytes / MIB:,.0f} MiB stay free{time})"


@dataclass
class Trials:
    """The estimates of a record's command line with some overrides more, each made once.

    seconds: how long new ones are begun. at(count, planned): called before each. found(text): called with what fits.
    """

    outcome: Record
    seconds: float = math.inf
    at: Callable[[int, int], None] = lambda count, planned: None
    found: Callable[[str], None] = lambda text: None
    planned: int = 0  # how many there may be, as far as the search has come
    made: dict[frozenset[str], Trial] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def __call__(self, changes: list[str] | tuple[str, ...]) -> Trial:
        """The estimate with some overrides more. Raises TimeIsUp."""
        key = frozenset(changes)
        if key not in self.made:
            if time.monotonic() - self.began > self.seconds:
                raise TimeIsUp
            self.at(len(self.made) + 1, max(self.planned, len(self.made) + 1))
            trial = self.made[key] = _try(self.outcome, list(changes))
            if trial.fits:
                self.found(f"fits: {trial}")
        return self.made[key]

    def plan(self, count: int) -> None:
        """So many more may come."""
        self.planned = len(self.made) + count

    @property
    def progress(self) -> str:
        """How far the search has come."""
        return f"{len(self.made)} of {max(self.planned, len(self.made))}"

    @property
    def fitting(self) -> list[Trial]:
        return sorted((trial for trial in self.made.values() if trial.fits), key=lambda trial: trial.rank)


def _try(outcome: Record, changes: list[str]) -> Trial:
    """The estimate with some overrides more."""
    from legroom.foresight.search import runner

    record, refused = runner.predict(with_changes(outcome, changes))
    return Trial(tuple(changes), None if record is None or record.estimate is None else record, refused)


def with_changes(outcome: Record, changes: list[str]) -> list[str]:
    """The overrides of a record, and some more in place of those of their keys."""
    replaced = {change.partition("=")[0] for change in changes} | {"recipe"}
    return [*(each for each in outcome.overrides if each.partition("=")[0] not in replaced), *changes]
