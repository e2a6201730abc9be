"""Changes of a command line that are tried by estimates: each made once, within a time, while somebody may watch.

Imports no torch until something is tried.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from typing import Any

from legroom import units
from legroom.foresight.tried import Tried
from legroom.records.record import Record


class TimeIsUp(Exception):
    """estimate.hint_seconds have passed."""


@dataclass(frozen=True)
class Trial(Tried):
    """Changes of a command line, as overrides, with their estimate."""

    changes: tuple[str, ...] = ()

    def __str__(self) -> str:
        seconds = self.record.speed.step_seconds_median
        time = f", {seconds * 1000:,.0f} ms a step" if seconds else ""
        return f"{' '.join(self.changes)} ({units.size(self.estimate.margin_bytes)} stay free{time})"


@dataclass
class Trials(Executor):
    """The estimates of a record's command line with some overrides more, each made once; and an executor for searches.

    seconds: how long new ones are begun. at(count, planned): called before each. found(text): called with what fits.
    also: overrides that were found before and stand among those of `outcome`, to be typed with whatever fits.
    """

    outcome: Record
    seconds: float = math.inf
    at: Callable[[int, int], None] = lambda count, planned: None
    found: Callable[[str], None] = lambda text: None
    planned: int = 0  # how many there may be, as far as the search has come
    count: int = 0
    made: dict[frozenset[str], Trial] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    fitting: list[Trial] = field(default_factory=list)  # the best of each search
    also: tuple[str, ...] = ()

    def __call__(self, changes: Iterable[str]) -> Trial:
        """The estimate with some overrides more. Raises TimeIsUp."""
        key = frozenset(changes)
        if key not in self.made:
            self.made[key] = self.submit(_try, self.outcome, list(changes)).result()
        return self.made[key]

    def submit(self, function: Callable[..., Any], /, *args: Any, **more: Any) -> Future:
        """A call that is made in this process, when its result is asked for. That raises TimeIsUp."""
        return _Later(lambda: self._run(lambda: function(*args, **more)))

    def _run(self, call: Callable[[], Any]) -> Any:
        if time.monotonic() - self.began > self.seconds:
            raise TimeIsUp
        self.count += 1
        self.at(self.count, max(self.planned, self.count))
        return call()

    @contextlib.contextmanager
    def beside(self, changes: tuple[str, ...]) -> Iterator[None]:
        """Inside, all trials are made with these changes too, and name them."""
        outcome, made = self.outcome, self.made
        self.outcome = replace(outcome, overrides=with_changes(outcome.overrides, changes))
        self.made, self.also = {}, changes
        try:
            yield
        finally:
            self.outcome, self.made, self.also = outcome, made, ()

    def plan(self, count: int) -> None:
        """So many more may come."""
        self.planned = self.count + count

    def note(self, trial: Trial) -> Trial:
        """Tell whoever watches what fits, and return it with all that is to be typed."""
        if self.also:
            trial = replace(trial, changes=(*self.also, *trial.changes))
        self.fitting.append(trial)
        self.found(f"fits: {trial}")
        return trial

    @property
    def progress(self) -> str:
        """How far the search has come."""
        return f"{self.count} of {max(self.planned, self.count)}"


class _Later(Future):
    """A call that is made when its result is asked for."""

    def __init__(self, call: Callable[[], Any]):
        super().__init__()
        self._call = call

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self.set_result(self._call())
        return super().result(timeout)


def _try(outcome: Record, changes: list[str]) -> Trial:
    """The estimate with some overrides more."""
    from legroom.foresight.search import runner

    record, refused = runner.predict(with_changes(outcome.overrides, changes))
    return Trial(None if record is None or record.estimate is None else record, refused, tuple(changes))


def with_changes(overrides: Iterable[str], changes: Iterable[str]) -> list[str]:
    """Overrides, and some more in place of those of their keys."""
    replaced = {change.partition("=")[0] for change in changes} | {"recipe"}
    return [*(each for each in overrides if each.partition("=")[0] not in replaced), *changes]
