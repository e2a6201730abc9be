"""tracker=tensorboard: an event file in the run's folder, written without TensorFlow and without torch."""

from __future__ import annotations

import shlex
from pathlib import Path

from legroom.tracking.interface import Job, Result, Say, numbers

LABEL, PACKAGE, HAS_SWEEP_RUN = "TensorBoard", "tensorboard", False
TAKES_PAGE = False
FOLDER = "tensorboard"  # in the run's folder


def open_run(job: Job, say: Say) -> TensorboardRun:
    """Begin an event file."""
    return TensorboardRun(job, say)


def sweep_line(folder: Path) -> str:
    """The command that shows all runs of a sweep beside each other."""
    return f"tensorboard --logdir {shlex.quote(str(folder))}" if list(folder.glob(f"*/{FOLDER}")) else ""


class TensorboardRun:
    """An event file. See `interface.Run`."""

    def __init__(self, job: Job, say: Say):
        from tensorboard.summary import Writer  # pyright: ignore[reportMissingImports]  # may be missing

        folder = Path(job.folder, FOLDER)
        self.writer, self.step = Writer(str(folder)), 0
        say.where(f"TensorBoard: tensorboard --logdir {shlex.quote(str(folder))}", local=True)

    def log(self, values: dict[str, float], step: int) -> None:
        """See `interface.Run`."""
        self.step = step
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def finish(self, result: Result) -> None:
        """The numbers of the summary are points at the last step: TensorBoard has no other place for results."""
        for name, value in numbers(result.summary).items():
            self.writer.add_scalar(name, value, self.step)
        self.writer.close()
