"""tracker=tensorboard: an event file in the run's folder, written without TensorFlow and without torch."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

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

        self.make, self.folder = Writer, Path(job.folder, FOLDER)
        self.writer, self.step = None, 0
        say.where(f"TensorBoard: tensorboard --logdir {shlex.quote(str(self.folder))}", local=True)

    def _add(self, values: dict[str, float], step: int) -> Any:
        """Add points to the event file; the first ones begin it, and remove that of the training that is resumed, whose
        steps come again."""
        if self.writer is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.writer = self.make(str(self.folder))
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        return self.writer

    def log(self, values: dict[str, float], step: int) -> None:
        """See `interface.Run`."""
        self.step = step
        self._add(values, step).flush()

    def finish(self, result: Result) -> None:
        """The numbers of the summary are points at the last step: TensorBoard has no other place for results."""
        if self.writer is not None or not self.folder.exists():
            self._add(numbers(result.summary), self.step).close()
