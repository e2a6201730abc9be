"""What a person sees: a bar while a job runs, a short summary when it is over."""

from __future__ import annotations

import contextlib
import os
import sys

from recipes.ranks import rank_info


class Console:
    """Draws a job's progress on stderr; a plain line now and then where stderr is no terminal.

    words, number, jobs: which job of a sweep this is, and of how many. quiet: draw nothing, for jobs
    side by side, whose bars would write over one another.
    """

    def __init__(self, words: str = "", number: int = 0, jobs: int | None = None, quiet: bool = False):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.sweeping, self.quiet = number > 0, quiet
        self.head = f"{number}{f'/{jobs}' if jobs else ''}  {words}  " if self.sweeping else ""
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            refresh_per_second=5,
            disable=quiet,
        )
        self.task = self.progress.add_task(self.head + "starting", total=None, text="")
        self.total = 0

    def __enter__(self):
        self.progress.start()
        return self

    def __exit__(self, *_):
        self.progress.stop()

    def hear(self, kind: str, values: dict) -> None:
        """A message of the worker: phase, progress or warning."""
        if kind == "phase":
            self.total = values.get("total", 0)
            self.progress.reset(
                self.task,
                description=self.head + values["name"],
                total=self.total or None,
                completed=values.get("step", 0),
                text="",
            )
        elif kind == "progress":
            text = (
                f"{values['step']}/{self.total}  loss {values['loss']:.4f}  "
                f"{values['samples_per_second']:.1f} samples/s"
            )
            self.progress.update(self.task, completed=values["step"], text=text)
            if not self.console.is_terminal and not self.sweeping:
                self.console.print(text)
        elif kind == "warning":
            self.warn(values["text"])

    def warn(self, text: str) -> None:
        """A line that deserves a look but stops nothing."""
        if not self.quiet:
            with contextlib.suppress(OSError):
                self.console.print(f"warning: {text}", style="yellow", markup=False)


def say(text: str) -> None:
    """Print on stdout. A reader that has left (`| head`) is no failure: the record holds it all."""
    _print(text, sys.stdout)


def say_problems(problems: list[str]) -> None:
    """Refusals, a line each, on stderr."""
    for problem in problems:
        _print(f"refused: {problem}", sys.stderr)


def _print(text: str, stream) -> None:
    if not rank_info.current_rank().is_main:  # a launcher's other ranks would say it all again
        return
    try:
        print(text, file=stream, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # or Python complains again at its end
