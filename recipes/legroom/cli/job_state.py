"""The figures of a running job, and how far its sweep is: for the terminal."""

import time
from dataclasses import dataclass, field

from legroom.records.messages import StepsDone
from legroom.units import GIB, MIB


@dataclass
class SweepState:
    """The jobs of a sweep as they end. jobs: how many there are, if known. ended: how many have."""

    jobs: int | None = None
    ended: int = 0
    seconds: list[float] = field(default_factory=list)  # of the jobs that ran here
    began: float = 0.0  # when the running job did
    printed: set[str] = field(default_factory=set)  # the warnings
    numbers: dict[str, int] = field(default_factory=dict)  # config_key -> the number of the job that had it first

    def seconds_left(self) -> float | None:
        """Until the sweep's end, if the jobs to come take as long as those before; None while that is not known."""
        if self.jobs is None or not self.seconds:
            return None
        job_seconds = sum(self.seconds) / len(self.seconds)
        running_seconds = max(0.0, job_seconds - (time.monotonic() - self.began))
        jobs_to_come = self.jobs - self.ended - 1
        return max(0.0, job_seconds * jobs_to_come + running_seconds)

    def job_ends(self, ran: bool) -> None:
        """A job has ended, here or (ran=False) in an earlier command."""
        self.ended += 1
        if ran:
            self.seconds.append(time.monotonic() - self.began)


def figures(done: StepsDone | None) -> str:
    """Loss, speed and memory; nothing before the first steps."""
    if done is None:
        return ""
    text = f"  loss {done.loss:.4f}  {done.samples_per_second:.1f} samples/s"
    if done.memory_bytes is not None:
        text += f"  {memory_text(done.memory_bytes, done.memory_limit_bytes or 0)}"
    return text


def memory_text(used: int, limit: int) -> str:
    """The memory in use, beside what there is, in bytes."""
    unit, name = (GIB, "GiB") if limit >= GIB else (MIB, "MiB")
    text = f"memory {used / unit:.1f} of {limit / unit:.1f} {name}"
    if limit:
        text += f" ({used / limit:.0%})"
    return text


def clock(seconds: float) -> str:
    """0:03:07"""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
