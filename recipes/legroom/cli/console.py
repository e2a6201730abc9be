"""Prints for a person: a screen while a job runs, and lines on stdout and stderr."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from legroom.cli import brief
from legroom.cli.job_state import clock, figures
from legroom.ranks import rank_info
from legroom.records.messages import Estimated, Message, PhaseAdvanced, PhaseStarted, Shown, StepsDone, WarningRaised
from legroom.records.printable import printable

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.console import RenderableType
    from rich.progress import Progress

    from legroom.records.record import Record

ASCII_LINES = str.maketrans("─━│┃╇┼", "--||++")  # rich's lines, for a terminal that cannot show them
LINE_SECONDS = 60.0  # between two lines where there is no terminal to draw on
BEAT_SECONDS = 30.0  # between two lines of `Heartbeat` there
QUIET_SECONDS = 4.0  # after which an estimate says again what it does, where there is no terminal to draw on
VERBOSE = False  # set by --verbose: the summary has all figures


def spinner(encoding: str) -> str:
    """The name of rich's spinner that a terminal of this encoding can show."""
    return "dots" if encoding.lower().startswith("utf") else "line"


def rich_stderr() -> RichConsole:
    """rich's console on stderr. Off a terminal it draws nothing and has no colours.

    rich would do both where FORCE_COLOR is set, as Jupyter sets it for what a notebook starts.
    """
    from rich.console import Console

    force_terminal = None if sys.stderr.isatty() else False
    return Console(stderr=True, highlight=False, soft_wrap=True, force_terminal=force_terminal)


class Console:
    """The screen of a running job on stderr: a bar, and below it loss, speed and memory.

    Plain lines where stderr is no terminal, or one that cannot move its cursor.
    label, number, jobs: in a sweep, the job's overrides, its number from 1, and the number of jobs (None: not known).
    quiet: draw nothing, for jobs that run at the same time, whose bars would overwrite each other.
    seconds_left(): in a sweep, until its end, as far as that is known. printed: the warnings that were printed, by a
    sweep's earlier jobs too; each is printed once. beats: off a terminal say every few seconds what is being done.
    """

    def __init__(
        self,
        label: str = "",
        number: int = 0,
        jobs: int | None = None,
        quiet: bool = False,
        seconds_left: Callable[[], float | None] = lambda: None,
        printed: set[str] | None = None,
        beats: bool = False,
    ):
        self.console = rich_stderr()
        self.in_sweep = number > 0
        self.quiet = quiet
        self.seconds_left = seconds_left
        self.label = label
        self.position = ""
        if self.in_sweep:
            self.position = f"{number}/{jobs}" if jobs else str(number)
        self.draws = self.console.is_terminal and not self.console.is_dumb_terminal
        self.latest: StepsDone | None = None
        self.printed = set[str]() if printed is None else printed
        self._printed_at: float | None = None  # when the last line was printed off a terminal
        self.answered = False  # whether the figures of an estimate have been printed
        self.progress = _progress(self, quiet)
        self.task = self.progress.add_task("starting", total=None, text="")
        self.beats = beats and not self.draws and not quiet
        self._ended = threading.Event()
        self._spoke_at = self._began = time.monotonic()

    def __enter__(self) -> Console:
        self.progress.start()
        if self.beats:
            threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self._ended.set()
        self.progress.stop()

    def _beat(self) -> None:
        """Say what is being done whenever nothing was said for some seconds."""
        while not self._ended.wait(QUIET_SECONDS / 8):
            now = time.monotonic()
            if now - self._spoke_at >= QUIET_SECONDS:
                self._spoke_at = now
                with contextlib.suppress(OSError):
                    text = f"{self.progress.tasks[0].description} ({now - self._began:.0f} s)"
                    self.console.print(text, markup=False)

    def on_message(self, message: Message) -> None:
        """Show a message of the worker."""
        if isinstance(message, PhaseStarted):
            self.progress.tasks[0].total = message.total or None  # `reset(total=None)` would keep the old one
            self.progress.reset(self.task, description=self._can_show(message.name), completed=message.step, text="")
        elif isinstance(message, StepsDone | PhaseAdvanced):
            self._advance(message)
        elif isinstance(message, WarningRaised):
            self.warn(message.text)
        elif isinstance(message, Shown):
            if not message.of_one_run or not self.in_sweep:
                self._show(message.text)
        elif isinstance(message, Estimated) and not self.quiet:
            self.progress.stop()  # it draws on the same terminal
            say(brief.answer(message.record))
            self.answered = True
            self.progress.start()

    def finish(self, outcome: Record, folder: Path) -> None:
        """Print what the run came to."""
        say(brief.brief(outcome, folder, self.answered, self.printed, VERBOSE))

    def lines(self) -> tuple[str, str]:
        """What stands above the bar and below it."""
        parts = [self.position, self.label]
        seconds = self.seconds_left()
        if seconds is not None:
            parts.insert(1, f"{clock(seconds)} left")
        above = "  ".join(part for part in parts if part)
        return self._can_show(above), figures(self.latest)

    def warn(self, text: str) -> None:
        """Print a warning, in a line of its own."""
        if not self.quiet and text not in self.printed:
            self.printed.add(text)
            self._spoke_at = time.monotonic()
            with contextlib.suppress(OSError):
                self.console.print(f"warning: {printable(text)}", style="yellow", markup=False)

    def _show(self, text: str) -> None:
        """Print a text of the worker as it is."""
        if not self.quiet:
            self._spoke_at = time.monotonic()
            with contextlib.suppress(OSError):
                self.console.print(printable(text, keep="\n\t"), markup=False)

    def _can_show(self, text: str) -> str:
        """The text in the terminal's encoding."""
        encoding = self.console.encoding
        return printable(text).encode(encoding, "backslashreplace").decode(encoding)

    def _advance(self, message: StepsDone | PhaseAdvanced) -> None:
        task = self.progress.tasks[0]
        steps = f"{message.step}/{task.total or 0:.0f}"
        if isinstance(message, StepsDone):
            self.latest = message
        self.progress.update(self.task, completed=message.step, text=steps)
        if self.draws or self.in_sweep:
            return
        now = time.monotonic()
        if self._printed_at is not None and now - self._printed_at < LINE_SECONDS:
            return
        self._printed_at = now
        if isinstance(message, StepsDone):
            self.console.print(f"{steps}  loss {message.loss:.4f}  {message.samples_per_second:.1f} samples/s")
        else:
            self.console.print(f"{task.description} {steps}")


class Heartbeat:
    """What is being done, and for how many seconds so far, on stderr: on a terminal a line that is drawn again each
    second and vanishes at the end, elsewhere a line every half minute. silent: nothing at all."""

    def __init__(self, text: str, silent: bool = False):
        terminal = rich_stderr()
        self.draws = terminal.is_terminal and not terminal.is_dumb_terminal
        self.terminal = terminal
        self.silent = silent
        self._text = text
        self._status = terminal.status("", spinner=spinner(terminal.encoding))
        self._began = time.monotonic()
        self._ended = threading.Event()

    def __enter__(self) -> Heartbeat:
        if not self.silent:
            if self.draws:
                self._status.start()
            self._draw()
            threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self._ended.set()
        if self.draws and not self.silent:
            self._status.stop()

    def show(self, text: str) -> None:
        """Say what is being done from now on."""
        self._text = printable(text)
        self._draw()

    def line(self) -> str:
        """What is being done, and for how long something has been done at all."""
        return f"{self._text} ({time.monotonic() - self._began:.0f} s)"

    def _draw(self) -> None:
        if self.draws and not self.silent and not self._ended.is_set():
            from rich.text import Text

            self._status.update(Text(self.line()))

    def _beat(self) -> None:
        while not self._ended.wait(1.0 if self.draws else BEAT_SECONDS):
            if self.draws:
                self._draw()
                continue
            with contextlib.suppress(OSError):
                self.terminal.print(self.line(), markup=False)


def _progress(screen: Console, quiet: bool) -> Progress:
    """The bar, between the two lines of the screen. rich draws it in a thread, five times a second."""
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
    from rich.table import Column
    from rich.text import Text

    class Screen(Progress):
        def get_renderables(self) -> Iterable[RenderableType]:
            above, below = screen.lines()
            # A line that is too long is cut: one that wraps would stay on the terminal.
            if above:
                yield Text(above, no_wrap=True, overflow="crop")
            yield self.make_tasks_table(self.tasks)
            if below:
                yield Text(below, no_wrap=True, overflow="crop")

    class Left(ProgressColumn):
        def render(self, task: Task) -> Text:  # by the pace of the latest half minute
            if task.time_remaining is None:
                return Text("")
            return Text(f"{clock(task.time_remaining)} left")

    def cut() -> Column:  # not with an ellipsis, which an ASCII terminal does not have
        return Column(no_wrap=True, overflow="crop")

    return Screen(
        SpinnerColumn(spinner(screen.console.encoding), table_column=cut()),
        TextColumn("{task.description}", markup=False, table_column=cut()),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[text]}", table_column=cut()),
        TimeElapsedColumn(table_column=cut()),
        Left(table_column=cut()),
        console=screen.console,
        transient=True,
        refresh_per_second=5,
        disable=quiet or not screen.draws,
    )


def say(text: str) -> None:
    """Print on stdout, on rank 0 alone. A reader that has left (`| head`) is no error: the record holds everything."""
    _print(text, sys.stdout)


def say_problems(problems: list[str]) -> None:
    """Print refusals on stderr, a line each."""
    for problem in problems:
        _print(f"refused: {problem}", sys.stderr)


@contextlib.contextmanager
def one_line_warnings() -> Iterator[None]:
    """Inside, Python's warnings are one line each, without the file and the line of the library that gave them."""

    def show(message: Warning | str, *_, **__) -> None:
        _print(f"warning: {printable(' '.join(str(message).split()))}", sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


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
