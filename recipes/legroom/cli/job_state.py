"""What a running job is doing, from its messages, and how far its sweep is: for the terminal."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from legroom.records.messages import Message, PhaseAdvanced, PhaseStarted, StepsDone
from legroom.units import GIB, MIB

PACE_SECONDS = 30.0  # the time left follows from the pace of so long


class JobState:
    """phase: its name for people. step, total: of the phase; total is 0 where it has no steps. last: the newest
    figures of the training."""

    def __init__(self) -> None:
        self.phase, self.step, self.total = "starting", 0, 0
        self.last: StepsDone | None = None
        self._pace: deque[tuple[float, int]] = deque()  # (time.monotonic(), step)

    def on_message(self, message: Message) -> bool:
        """Take in a message. Returns whether it says how far the job is."""
        if isinstance(message, PhaseStarted):
            self.phase, self.step, self.total = message.name, message.step, message.total
            self._pace.clear()  # the first steps are slower than the others, so they are not part of the pace
        elif isinstance(message, StepsDone | PhaseAdvanced):
            self.step = message.step
            self._pace.append((time.monotonic(), message.step))
            while len(self._pace) > 2 and self._pace[-1][0] - self._pace[1][0] > PACE_SECONDS:
                self._pace.popleft()
            if isinstance(message, StepsDone):
                self.last = message
        else:
            return False
        return True

    def seconds_left(self) -> float | None:
        """Until the end of the phase, at its pace so far; None while that is not known."""
        if len(self._pace) < 2 or not self.total:
            return None
        (began, first), (latest, step) = self._pace[0], self._pace[-1]
        if step <= first:
            return None
        return max(0.0, (latest - began) / (step - first) * (self.total - step) - (time.monotonic() - latest))

    def figures(self) -> list[str]:
        """Loss, speed and memory as texts; empty before the first steps."""
        if self.last is None:
            return []
        return [
            f"loss {self.last.loss:.4f}",
            f"{self.last.samples_per_second:.1f} samples/s",
            *([memory_text(self.last)] if self.last.memory_bytes is not None else []),
        ]


@dataclass
class SweepState:
    """The jobs of a sweep as they end. jobs: how many there are, if known. ended: how many have."""

    jobs: int | None = None
    ended: int = 0
    seconds: list[float] = field(default_factory=list)  # of the jobs that ran here
    began: float = 0.0  # when the running job did

    def seconds_left(self) -> float | None:
        """Until the sweep's end, if the jobs to come take as long as those before; None while that is not known."""
        if self.jobs is None or not self.seconds:
            return None
        each, rest = sum(self.seconds) / len(self.seconds), self.jobs - self.ended
        return max(0.0, each * (rest - 1) + max(0.0, each - (time.monotonic() - self.began)))

    def job_ends(self, ran: bool) -> None:
        """A job has ended, here or (ran=False) in an earlier command."""
        self.ended += 1
        if ran:
            self.seconds.append(time.monotonic() - self.began)


def memory_text(done: StepsDone) -> str:
    """The memory in use, beside what there is."""
    used, limit = done.memory_bytes or 0, done.memory_limit_bytes or 0
    unit, name = (GIB, "GiB") if limit >= GIB else (MIB, "MiB")
    share = f" ({used / limit:.0%})" if limit else ""
    return f"memory {used / unit:.1f} of {limit / unit:.1f} {name}{share}"


def clock(seconds: float | None) -> str:
    """0:03:07; an empty text for None."""
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
