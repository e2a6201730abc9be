"""The messages that a worker sends to its supervisor, which passes them on to the console and the tracker."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from legroom.records.record import Error, Record

ADVANCE_SECONDS = 1.0


class Message:
    """Any of those below."""


@dataclass(frozen=True)
class PhaseStarted(Message):
    """The job enters a phase. phase: load, train, save, eval or count; name: what the console shows for it.

    total: steps of the phase, 0 where it has none. step: how many of them are done.
    """

    phase: str
    name: str
    total: int = 0
    step: int = 0


@dataclass(frozen=True)
class StepsDone(Message):
    """Optimizer steps so far, the loss of the last one, and the throughput since the previous message.

    memory_bytes: what rank 0 has in use, of memory_limit_bytes (`device_memory.in_use`); None where it is not known.
    """

    step: int
    loss: float
    samples_per_second: float
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None


@dataclass(frozen=True)
class PhaseAdvanced(Message):
    """Steps of a phase that has no optimizer steps (the evaluation's batches) that are done so far."""

    step: int


@dataclass(frozen=True)
class WarningRaised(Message):
    """A warning, which is also in the record."""

    text: str


@dataclass(frozen=True)
class Shown(Message):
    """A text for the console alone, of several lines. of_one_run: too much beside the other jobs of a sweep."""

    text: str
    of_one_run: bool = False


@dataclass(frozen=True)
class Estimated(Message):
    """The record of an estimate that goes on: it tries what would make the step fit, or what each lever saves."""

    record: Record


@dataclass(frozen=True)
class RankFailed(Message):
    """Why a rank ended. lost_contact: it only saw that another rank had ended, so it is not the cause."""

    status: str
    error: Error
    lost_contact: bool = False

    def to_dict(self) -> dict:
        """The failure as JSON values, to publish it to ranks that have another supervisor."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict) -> RankFailed:
        """The inverse of `to_dict`."""
        return cls(values["status"], Error(**values["error"]), values["lost_contact"])


@dataclass(frozen=True)
class RankPreempted(Message):
    """A rank other than 0, which writes no record, has saved its part of a checkpoint and ends before the last step."""


@dataclass(frozen=True)
class RecordUnwritten(Message):
    """The record of a worker that could not write it, because the disk is full, for example."""

    record: Record


@dataclass
class Progress:
    """What a job is doing: sent to the supervisor, and kept for the record of a failure.

    send: sends a message to the supervisor; does nothing on ranks other than 0.
    record: the job's record, which collects the warnings. began: when this process began, by time.perf_counter().
    """

    send: Callable[[Message], None]
    record: Record
    phase: str = "load"
    advanced: float = 0.0  # when `advance` last sent a message
    began: float = field(default_factory=time.perf_counter)

    def enter(self, phase: str, name: str, total: int = 0, step: int = 0) -> None:
        """Enter a phase; see `PhaseStarted`."""
        self.phase = phase
        self.send(PhaseStarted(phase, name, total, step))

    def advance(self, step: int) -> None:
        """Say how many steps of a phase without optimizer steps are done, once in ADVANCE_SECONDS."""
        if time.monotonic() - self.advanced >= ADVANCE_SECONDS:
            self.advanced = time.monotonic()
            self.send(PhaseAdvanced(step))

    def warn(self, text: str) -> None:
        """Add a warning to the record and show it on the console."""
        self.record.warnings.append(text)
        self.send(WarningRaised(text))
