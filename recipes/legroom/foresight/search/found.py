"""A configuration that a search has estimated."""

from dataclasses import dataclass, field
from typing import Any

from legroom.foresight.search import objective, space
from legroom.foresight.tried import Tried


@dataclass(frozen=True)
class Found(Tried):
    """A choice (lever -> value) with its estimate."""

    chosen: dict[str, Any] = field(default_factory=dict)

    def order(self, search: space.SearchSpace) -> tuple[float, int, float]:
        """What rows are sorted by."""
        return objective.order(self.step_seconds, search.changes_of(self.chosen))

    @property
    def step_seconds(self) -> float:
        return self.record.speed.step_seconds_median or 0.0
