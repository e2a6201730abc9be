"""What a job's screen shows, on a terminal and off one, and what is printed where a terminal knows few letters."""

from __future__ import annotations

import io
import sys
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import rich.console

from legroom.cli import console
from legroom.cli.console import Console
from legroom.records.messages import PhaseAdvanced, PhaseStarted, StepsDone
from legroom.units import GIB

DONE = StepsDone(2, 0.5, 12.0, GIB, 2 * GIB)


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test moves: clock.now, in seconds."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.fixture
def terminal(monkeypatch):
    """stderr is a terminal of 100 columns, which keeps what it gets."""
    stream = io.StringIO()
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "100", "NO_COLOR": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", stream)
    # pytest puts its own stderr back before the test begins.
    monkeypatch.setattr(console, "sys", SimpleNamespace(stdout=sys.stdout, stderr=SimpleNamespace(isatty=lambda: True)))
    return stream


@pytest.mark.parametrize(
    "encoding, name", [("utf-8", "dots"), ("UTF-16", "dots"), ("ascii", "line"), ("latin-1", "line")]
)
def test_spinner_fits_the_encoding(encoding, name):
    assert console.spinner(encoding) == name


@pytest.mark.parametrize(
    "number, jobs, left, label, above",
    [
        (0, None, None, "", ""),
        (1, None, None, "a=1", "1  a=1"),
        (1, 7, 65.0, "a=1 b=2", "1/7  0:01:05 left  a=1 b=2"),
        (2, 7, None, "", "2/7"),
    ],
)
def test_line_above_the_bar(number, jobs, left, label, above):
    screen = Console(label, number, jobs, seconds_left=lambda: left)
    assert screen.lines() == (above, "")
    screen.latest = DONE
    assert screen.lines() == (above, "  loss 0.5000  12.0 samples/s  memory 1.0 of 2.0 GiB (50%)")


@pytest.mark.parametrize("forced", ["", "1"])
def test_one_line_a_minute_off_a_terminal(clock, capsys, monkeypatch, forced):
    monkeypatch.setenv("FORCE_COLOR", forced)  # Jupyter sets it for what a notebook starts
    screen = Console()
    assert not screen.draws and screen.progress.disable
    screen.on_message(PhaseStarted("train", "training", 10))
    screen.on_message(DONE)
    clock.now += 59.9
    screen.on_message(StepsDone(3, 0.4, 12.0))
    clock.now += 0.1
    screen.on_message(StepsDone(4, 0.25, 12.34))
    screen.on_message(PhaseStarted("eval", "evaluating", 0, 1))
    clock.now += 60
    screen.on_message(PhaseAdvanced(3))
    assert capsys.readouterr().err.splitlines() == [
        "2/10  loss 0.5000  12.0 samples/s",
        "4/10  loss 0.2500  12.3 samples/s",
        "evaluating 3/0",
    ]
    (task,) = screen.progress.tasks
    assert (task.total, task.completed) == (None, 3) and screen.latest == StepsDone(4, 0.25, 12.34)
    in_sweep = Console("a=1", 1)
    in_sweep.on_message(PhaseStarted("train", "training", 10))
    in_sweep.on_message(DONE)
    assert capsys.readouterr().err == ""


def test_bar_stands_between_two_lines(terminal):
    screen = Console("optim=a[b]", 2, 7, seconds_left=lambda: 65.0)
    assert screen.draws and not screen.progress.disable and screen.progress.live.transient
    screen.on_message(PhaseStarted("train", "train[ing]", 10))
    screen.on_message(DONE)
    parts: list[Any] = list(screen.progress.get_renderables())
    above, bar, below = parts
    assert [above.plain, below.plain] == ["2/7  0:01:05 left  optim=a[b]", screen.lines()[1]]
    assert above.no_wrap and above.overflow == "crop" and len(bar.columns) == 6
    assert [column.no_wrap for column in bar.columns] == [True, True, False, True, True, True]
    rich.console.Console(file=terminal, width=100, force_terminal=True, color_system=None).print(bar)
    shown = terminal.getvalue()
    assert "train[ing]" in shown and "2/10" in shown and "left" not in shown
    assert len(list(Console().progress.get_renderables())) == 1, "without a sweep and before the first step"
    assert Console("", 1, quiet=True).progress.disable


def test_dumb_terminal_has_no_bar(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert not Console().draws and Console().progress.disable


def test_library_warning_is_one_line(capsys):
    before = warnings.showwarning
    with console.one_line_warnings():
        warnings.simplefilter("always")
        warnings.warn("one\n  two\x07", stacklevel=1)
    assert capsys.readouterr().err == "warning: one two\\x07\n" and warnings.showwarning is before
