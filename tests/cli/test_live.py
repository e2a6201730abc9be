"""What a person sees while a job runs: its state, and the time left."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
import types

import pytest
from conftest import ROOT

from legroom.cli import job_state
from legroom.cli.console import Console
from legroom.cli.job_state import SweepState
from legroom.records.messages import PhaseAdvanced, PhaseStarted, StepsDone
from legroom.units import GIB


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test moves: clock.now, in seconds."""
    clock = types.SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(job_state, "time", clock)
    return clock


def test_new_phase_keeps_the_figures():
    screen = Console()
    (task,) = screen.progress.tasks
    screen.on_message(PhaseStarted("train", "training", 100, 40))
    for step in (41, 42, 43):
        screen.on_message(StepsDone(step, 1.0, 4.0))
    assert (task.description, task.completed, task.remaining) == ("training", 43, 57)
    assert task.time_remaining is not None and screen.lines()[1].split() == ["loss", "1.0000", "4.0", "samples/s"]
    screen.on_message(PhaseStarted("eval", "evaluating", 8))
    screen.on_message(PhaseAdvanced(3))
    assert (task.description, task.remaining, task.time_remaining) == ("evaluating", 5, None)
    assert "loss 1.0000" in screen.lines()[1]


def test_memory_stands_beside_its_limit():
    assert job_state.figures(None) == ""
    done = StepsDone(3, 0.5, 12.0, 18 * GIB, 24 * GIB)
    assert job_state.figures(done) == "  loss 0.5000  12.0 samples/s  memory 18.0 of 24.0 GiB (75%)"
    assert "memory" not in job_state.figures(StepsDone(4, 0.5, 12.0))


def test_seconds_left_of_a_sweep(clock):
    state = SweepState(jobs=5)
    assert state.seconds_left() is None
    for seconds in (10, 20):
        state.began = clock.now
        clock.now += seconds
        state.job_ends(ran=True)
    state.job_ends(ran=False)  # done before
    state.began = clock.now
    clock.now += 5
    assert state.seconds_left() == 15 + 10


# --- the terminal ----------------------------------------------------------------------------------

SCREEN = """
import time
from legroom.cli.console import Console
from legroom.records.messages import PhaseStarted, StepsDone
with Console("optim=n\\u00e4me", 2, 7, seconds_left=lambda: 65.0) if {sweep} else Console() as screen:
    screen.on_message(PhaseStarted("train", "training", 10))
    for step in (1, 2):
        screen.on_message(StepsDone(step, 0.5, 12.0, 18 * 2**30, 24 * 2**30))
        time.sleep(0.3)
    time.sleep({wait})
"""


def on_terminal(sweep=False, wait=0.0, interrupt=False, **variables) -> str:
    """What a terminal gets from a job's screen."""
    ours, theirs = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "-c", SCREEN.format(sweep=sweep, wait=wait)],
        cwd=ROOT,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"} | variables,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            seen += os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if interrupt and b"2/10" in seen:
            run.send_signal(signal.SIGINT)
            interrupt = False
    os.close(ours)
    run.wait(20)
    return seen.decode()


def test_terminal_shows_figures_and_time_left():
    seen = on_terminal(sweep=True)
    assert "2/7  0:01:05 left  optim=näme" in seen and "memory 18.0 of 24.0 GiB (75%)" in seen
    assert re.search(r"2/10.*0:00:0\d.* left", seen) and "\x1b[3" in seen


def test_ascii_terminal_without_colours():
    seen = on_terminal(sweep=True, NO_COLOR="1", PYTHONIOENCODING="ascii")
    assert "optim=n\\xe4me" in seen and seen.isascii() and "\\u" not in seen
    assert not re.search(r"\x1b\[[0-9;]*3\dm", seen)


def test_dumb_terminal_gets_lines():
    assert on_terminal(TERM="dumb").splitlines() == [
        "1/10  loss 0.5000  12.0 samples/s",
    ]


def test_ctrl_c_restores_the_cursor():
    began = time.monotonic()
    seen = on_terminal(wait=30, interrupt=True)
    assert time.monotonic() - began < 20 and seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")
