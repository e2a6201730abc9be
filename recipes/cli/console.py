"""Prints for a person: a progress bar while a job runs, and lines on stdout and stderr."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

from recipes.ranks import rank_info
from recipes.records.messages import Message, PhaseAdvanced, PhaseStarted, Shown, StepsDone, WarningRaised
from recipes.records.printable import printable

ASCII_LINES = str.maketrans("─━│┃╇┼", "--||++")  # rich's lines, for a terminal that cannot show them


def spinner(encoding: str) -> str:
    """The name of rich's spinner that a terminal of this encoding can show."""
    return "dots" if encoding.lower().startswith("utf") else "line"


class Console:
    """A job's progress bar on stderr; plain lines where stderr is no terminal.

    label, number, jobs: in a sweep, the job's overrides, its number from 1, and the number of jobs (None: not known).
    quiet: draw nothing, for jobs that run at the same time, whose bars would overwrite each other.
    """

    def __init__(self, label: str = "", number: int = 0, jobs: int | None = None, quiet: bool = False):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.in_sweep, self.quiet = number > 0, quiet
        self.prefix = f"{number}{f'/{jobs}' if jobs else ''}  {label}  " if self.in_sweep else ""
        self.progress = Progress(
            SpinnerColumn(spinner(self.console.encoding)),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            refresh_per_second=5,
            disable=quiet,
        )
        self.task = self.progress.add_task(self.prefix + "starting", total=None, text="")
        self.total_steps, self.phase_name = 0, ""

    def __enter__(self) -> Console:
        self.progress.start()
        return self

    def __exit__(self, *_) -> None:
        self.progress.stop()

    def on_message(self, message: Message) -> None:
        """Show a message of the worker."""
        if isinstance(message, PhaseStarted):
            self._start_phase(message)
        elif isinstance(message, StepsDone):
            self._update(message)
        elif isinstance(message, PhaseAdvanced):
            self._advance(message.step)
        elif isinstance(message, WarningRaised):
            self.warn(message.text)
        elif isinstance(message, Shown):
            self._show(message.text)

    def warn(self, text: str) -> None:
        """Print a warning, in a line of its own."""
        if not self.quiet:
            with contextlib.suppress(OSError):
                self.console.print(f"warning: {printable(text)}", style="yellow", markup=False)

    def _show(self, text: str) -> None:
        """Print a text of the worker as it is."""
        if not self.quiet:
            with contextlib.suppress(OSError):
                self.console.print(printable(text, keep="\n\t"), markup=False)

    def _start_phase(self, phase: PhaseStarted) -> None:
        self.total_steps, self.phase_name = phase.total, phase.name
        self.progress.reset(
            self.task,
            description=self.prefix + phase.name,
            total=phase.total or None,  # type: ignore[arg-type]  (None: a bar without an end, as in add_task)
            completed=phase.step,
            text="",
        )

    def _advance(self, step: int) -> None:
        self.progress.update(self.task, completed=step, text=f"{step}/{self.total_steps}")
        if not self.console.is_terminal and not self.in_sweep:
            self.console.print(f"{self.phase_name} {step}/{self.total_steps}")

    def _update(self, done: StepsDone) -> None:
        speed = f"{done.samples_per_second:.1f} samples/s"
        text = f"{done.step}/{self.total_steps}  loss {done.loss:.4f}  {speed}"
        self.progress.update(self.task, completed=done.step, text=text)
        if not self.console.is_terminal and not self.in_sweep:
            self.console.print(text)


def say(text: str) -> None:
    """Print on stdout, on rank 0 alone. A reader that has left (`| head`) is no error: the record holds everything."""
    _print(text, sys.stdout)


def say_problems(problems: list[str]) -> None:
    """Print refusals on stderr, a line each."""
    for problem in problems:
        _print(f"refused: {problem}", sys.stderr)


def _print(text: str, stream: TextIO) -> None:
    if not rank_info.current_rank().is_main:
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    if not encoding.lower().startswith("utf"):
        text = text.translate(ASCII_LINES)
    try:
        shown = printable(text, keep="\n\t").encode(encoding, "backslashreplace").decode(encoding)
        print(shown, file=stream, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # Python flushes again at exit and would complain
