"""measure.live: what a page needs to follow a running job or sweep, written by the process that shows it.

The job itself does nothing for it: all figures are those of its messages.
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from legroom.cli import console
from legroom.cli.job_state import JobState
from legroom.records.messages import Message, StepsDone
from legroom.records.record import Record, shown_status
from legroom.report.page import live_page, run_page, settings

EVERY_SECONDS = 2.0  # between two writes
MOST_POINTS = 1_000  # of a long run: losses and speeds that the page draws


@dataclass
class SweepState:
    """The jobs of a sweep as they end. jobs: how many there are, if known. folder: that of a sweep that is followed."""

    jobs: int | None = None
    folder: Path | None = None
    ended: list[dict[str, Any]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of the jobs that ran here
    began: float = 0.0  # when the running job did

    def seconds_left(self) -> float | None:
        """Until the sweep's end, if the jobs to come take as long as those before; None while that is not known."""
        if self.jobs is None or not self.seconds:
            return None
        each, rest = sum(self.seconds) / len(self.seconds), self.jobs - len(self.ended)
        return max(0.0, each * (rest - 1) + max(0.0, each - (time.monotonic() - self.began)))

    def job_ends(self, label: str, outcome: Record, ran: bool) -> None:
        """A job has ended, here or (ran=False) in an earlier command."""
        if ran:
            self.seconds.append(time.monotonic() - self.began)
        memory = outcome.memory
        self.ended.append(
            {
                "label": label,
                "status": shown_status(outcome),
                "speed": outcome.speed.samples_per_second,
                "memory": memory.device_used_bytes or memory.peak_tensor_bytes,
                "loss": _finite(outcome.training.final_loss),
                "page": f"{outcome.config_key}/{run_page.PAGE}",
            }
        )

    def write(self, running: dict[str, Any] | None, status: str | None = None) -> None:
        """Tell the page of the sweep. status: at its end."""
        if self.folder is not None:
            news = {"at": time.time(), "jobs": self.jobs, "ended": self.ended, "left": self.seconds_left()}
            with contextlib.suppress(OSError):  # a full disk: the next write may succeed
                live_page.write_news(self.folder, news | {"running": running, "status": status})


class Follower:
    """Writes the page of a job that begins, and tells it of the job's messages."""

    def __init__(self, outcome: Record, folder: Path, label: str = "", sweep: SweepState | None = None):
        self.folder, self.label, self.sweep = folder, label, sweep
        self.state, self.points = JobState(), []
        self.began, self.written, self.every, self.seen = time.monotonic(), 0.0, 1, 0
        self.key = outcome.config_key
        above = sweep.folder if sweep else None
        with contextlib.suppress(OSError):  # the job's record is more important
            page = live_page.write(folder, run_page.subject(outcome), settings.command(outcome), above)
            self._write()
            if sweep is None:
                console.say(f"Follow it in a browser: {page}")

    def on_message(self, message: Message) -> None:
        """Take in a message; tell the page, if it is time."""
        if not self.state.on_message(message):
            return
        if isinstance(message, StepsDone):
            self._add(message)
        if time.monotonic() - self.written >= EVERY_SECONDS:
            self._write()

    def end(self, outcome: Record) -> None:
        """The job has its record and its page."""
        self._write(shown_status(outcome))

    def _add(self, done: StepsDone) -> None:
        self.seen += 1
        if self.seen % self.every == 0:
            self.points.append([done.step, _finite(done.loss), _finite(done.samples_per_second)])
        if len(self.points) > MOST_POINTS:
            self.points, self.every = self.points[::2], 2 * self.every

    def _write(self, status: str | None = None) -> None:
        self.written, state, last = time.monotonic(), self.state, self.state.last
        news: dict[str, Any] = {
            "at": time.time(),
            "status": status,
            "phase": state.phase,
            "step": state.step,
            "total": state.total,
            "left": state.seconds_left(),
            "elapsed": time.monotonic() - self.began,
            "loss": _finite(last.loss) if last else None,
            "speed": _finite(last.samples_per_second) if last else None,
            "memory": last.memory_bytes if last else None,
            "limit": last.memory_limit_bytes if last else None,
            "points": self.points,
        }
        with contextlib.suppress(OSError):
            live_page.write_news(self.folder, news)
        if self.sweep is not None and status is None:
            self.sweep.write(news | {"label": self.label, "page": f"{self.key}/{run_page.PAGE}"})


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
