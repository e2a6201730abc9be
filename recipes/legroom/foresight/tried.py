"""An estimate that was made, or why it was refused: what the advice tries and what `fit` finds."""

import math
from dataclasses import dataclass

from legroom.records.record import FITS, Estimate, Record, verdict_of


@dataclass(frozen=True)
class Tried:
    """The record of an estimate; None where it was refused, with the reason in `refused`."""

    outcome: Record | None
    refused: str = ""

    @property
    def record(self) -> Record:
        """The record of what was not refused."""
        assert self.outcome is not None, self.refused
        return self.outcome

    @property
    def estimate(self) -> Estimate:
        """The estimate of what was not refused."""
        assert self.record.estimate is not None, "an estimate for a GPU"
        return self.record.estimate

    @property
    def fits(self) -> bool:
        return self.outcome is not None and self.outcome.estimate is not None and verdict_of(self.estimate) == FITS

    @property
    def used_bytes(self) -> float:
        """The device's memory that is needed."""
        return (self.outcome and self.outcome.memory.device_used_bytes) or math.inf
