"""The app's estimates and the processes that they run in, which are played."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from legroom.cli import commands
from legroom.cli.app import child, estimates
from legroom.cli.app.estimates import Estimates, NotWanted


class End:
    """One end of a pipe. answers: what arrives, or the error that it raises; polls: how often nothing is there."""

    def __init__(self, answer: Any = None, polls: int = 0):
        self.answer, self.polls, self.seen = answer, polls, []

    def poll(self, seconds: float) -> bool:
        self.seen.append(seconds)
        self.polls -= 1
        return self.polls < 0

    def recv(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def close(self) -> None:
        self.seen.append("closed")


class Process:
    exitcode, pid = 3, 17

    def __init__(self, **settings: Any):
        self.settings, self.seen = settings, []

    def start(self) -> None:
        self.seen.append("started")

    def join(self, *seconds: float) -> None:
        self.seen.append(f"joined {list(seconds)}")

    def kill(self) -> None:
        self.seen.append("killed")


class Context:
    """What multiprocessing gives, with the ends of pipes that a test has put there."""

    def __init__(self):
        self.ends: list[tuple[End, End]] = []
        self.made: list[Process] = []
        self.preloaded: list[str] = []

    def set_forkserver_preload(self, names: list[str]) -> None:
        self.preloaded += names

    def Pipe(self) -> tuple[End, End]:
        return self.ends.pop(0)

    def Process(self, **settings: Any) -> Process:
        self.made.append(Process(**settings))
        return self.made[-1]


@pytest.fixture
def context(monkeypatch) -> Context:
    made = Context()
    monkeypatch.setattr(multiprocessing, "get_context", lambda kind: made if kind == "forkserver" else None)
    monkeypatch.setattr(
        estimates.threading, "Thread", lambda target, daemon: SimpleNamespace(start=lambda: daemon and target())
    )
    monkeypatch.setattr(estimates.host, "usable_cores", lambda: 3)
    monkeypatch.setattr(estimates.resource_tracker, "ensure_running", lambda: None)
    monkeypatch.setattr(estimates.signal, "pthread_sigmask", lambda *_: None)  # its thread is this one here
    monkeypatch.setenv("PYTHONPATH", "before")
    return made


def permits(semaphore: Any) -> int:
    count = 0
    while semaphore.acquire(blocking=False):
        count += 1
    return count


def test_the_libraries_are_imported_before_the_first_question(context, tmp_path):
    expected = estimates.interpreter.python_path()
    made = Estimates(tmp_path)
    assert context.preloaded == ["legroom.foresight.estimate_worker"] and os.environ["PYTHONPATH"] == expected
    (first,) = context.made
    assert first.settings == {"target": int, "daemon": True} and first.seen == ["started", "joined []"]
    assert [permits(made._free[advise]) for advise in (False, True)] == [3, 1]


def test_an_estimate_is_asked_of_a_process_that_ends_with_its_answer(context, tmp_path):
    made = Estimates(tmp_path)
    ends = [(End({"record": {}}, polls=2), End()), (End({"refused": "no"}), End()), (End({"record": 1}), End())]
    context.ends = list(ends)
    assert made.answer(["a"]) == {"record": {}, "page": 1}
    assert made.answer(["a"]) == {"record": {}, "page": 1}, "which is kept"
    assert made.answer(["b"], advise=True) == {"refused": "no"}
    assert made.answer(["a"], advise=True) == {"record": 1, "page": 3}
    asked = [process.settings for process in context.made[1:]]
    arguments = [(["a"], False), (["b"], True), (["a"], True)]
    assert asked == [
        {
            "target": child.run,
            "args": (words, tmp_path / str(number), ends[number - 1][1], advise, 180.0),
            "daemon": True,
        }
        for number, (words, advise) in enumerate(arguments, 1)
    ]
    assert ends[0][0].seen == [0.2] * 3 + ["closed"] and ends[0][1].seen == ["closed"]
    assert [process.seen for process in context.made[1:]] == [["started", "killed", "joined [5.0]"]] * 3
    assert not made._running and [permits(made._free[advise]) for advise in (False, True)] == [3, 1]


def test_a_process_that_ends_or_takes_too_long_is_said_and_asked_again(context, tmp_path, monkeypatch):
    made = Estimates(tmp_path)
    context.ends = [(End(EOFError()), End()), (End(ConnectionResetError()), End()), (End({"record": {}}), End())]
    for _ in range(2):
        assert made.answer(["a"]) == {"failed": "the process of the estimate has ended (exit code 3)."}
    assert context.made[-1].seen == ["started", "joined [5.0]", "killed", "joined [5.0]"]
    assert made.answer(["a"]) == {"record": {}, "page": 3}
    now = iter([0.0, 180.0, 180.1])
    monkeypatch.setattr(estimates.time, "monotonic", lambda: next(now))
    context.ends = [(End({"record": {}}, polls=9), End())]
    assert made.answer(["b"])["failed"].startswith("there is no answer after 180 seconds")
    assert not made._running


@pytest.mark.parametrize("closed, gone", [(False, True), (True, False)])
def test_what_nobody_wants_is_not_started(context, tmp_path, closed, gone):
    made = Estimates(tmp_path)
    made._closed = closed
    context.ends = [(End({"record": {}}), End())]
    with pytest.raises(NotWanted):
        made.answer(["a"], gone=lambda: gone)
    assert len(context.made) == 1 and not made._running and permits(made._free[False]) == 3


def test_a_process_that_the_app_has_ended_has_no_answer(context, tmp_path):
    made = Estimates(tmp_path)

    class Closing(End):
        def recv(self) -> Any:
            made._closed = True
            raise EOFError

    context.ends = [(Closing(), End())]
    with pytest.raises(NotWanted):
        made.answer(["a"])
    assert context.made[-1].seen == ["started", "killed", "joined [5.0]"]


def test_the_end_of_the_app_ends_its_processes(context, tmp_path, monkeypatch):
    made = Estimates(tmp_path)
    running, waiting = Process(), Process()
    waiting.pid = None  # type: ignore[assignment]  # not started yet
    made._running |= {running, waiting}  # type: ignore[arg-type]
    ended: list[Any] = []

    class Child:
        def __init__(self, *words: str, gone: bool = False):
            self.words, self.gone = words, gone

        def cmdline(self) -> tuple[str, ...]:
            if self.gone:
                raise psutil.NoSuchProcess(1)
            return self.words

        def kill(self) -> None:
            ended.append([self.words, "killed"])

        def status(self) -> str:  # it is not reaped, for multiprocessing does that
            ended.append([self.words, "asked"])
            return psutil.STATUS_RUNNING if len(ended) < 3 else psutil.STATUS_ZOMBIE

    server = ("python", "-c", "from multiprocessing.forkserver import main")
    below = [Child("sleep", "1"), Child(gone=True), Child(*server)]
    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(children=lambda: below))
    made.close()
    assert running.seen == ["killed", "joined [5.0]"] and not waiting.seen and made._running == {waiting}
    assert ended == [[server, "killed"], [server, "asked"], [server, "asked"]] and made._closed


def test_of_answers_and_simulations_so_many_are_kept(context, tmp_path):
    assert (estimates.MOST_KEPT, estimates.MOST_SIMULATIONS, child.MOST_BYTES) == (200, 40, 4 * 2**30)
    made = Estimates(tmp_path)
    context.ends = [(End({"record": number}), End()) for number in range(201)] + [(End({"refused": "no"}), End())]
    context.ends.insert(0, context.ends.pop())
    (tmp_path / child.SHARED).mkdir()
    for number in range(42):
        (tmp_path / child.SHARED / str(number)).touch()
    made.answer(["refused, and so without a page"])
    assert len(list((tmp_path / child.SHARED).iterdir())) == 40
    for number in range(1, 202):
        (tmp_path / str(number + 1)).mkdir()
        made.answer([str(number)])
    assert len(made._kept) == 200 and not (tmp_path / "2").exists() and (tmp_path / "3").exists()
    (tmp_path / "3" / "page.html").write_bytes(b"x")
    assert made.page(3) == b"x" and made.page(4) is None


def test_a_process_of_an_estimate_ends_where_its_pipe_does(monkeypatch):
    sent: list[Any] = []
    monkeypatch.setattr(child.os, "kill", lambda *given: sent.append(given))
    for error in (EOFError(), OSError()):
        child._end_with_app(End(error))  # type: ignore[arg-type]
    assert sent == [(os.getpid(), signal.SIGKILL)] * 2


# --- the commands by name -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train", "report"])
def test_a_file_of_a_checkout_is_its_command(monkeypatch, name):
    asked: list[Any] = []
    monkeypatch.setattr(sys, "argv", ["scripts/report.py", "a", "--help"])
    monkeypatch.setattr(commands, "run", lambda *given: asked.append(given) or 5)
    monkeypatch.setattr(commands.invocation, "remember", asked.append)
    assert commands.script(name) == 5 and asked == ["scripts/report.py", (name, ["a", "--help"])]


@pytest.mark.parametrize(
    "name, said",
    [
        ("a=1", "a=1 is no command. Type legroom train a=1 ..."),
        ("--multirun", "--multirun is no command. Type legroom train --multirun ..."),
        ("reprot", "'reprot' is no command. Type legroom report."),
        ("-x", f"'-x' is no command. There are {', '.join(commands.COMMANDS)}."),
    ],
)
def test_what_is_no_command_is_answered_with_what_to_type(monkeypatch, name, said):
    monkeypatch.setattr(commands.invocation, "command", lambda name="train": f"legroom {name}")
    assert commands._unknown(name) == said


def test_the_help_of_the_commands_is_a_table(monkeypatch):
    monkeypatch.setattr(commands.invocation, "command", lambda name="train": f"legroom {name}")
    lines = commands._help().splitlines()
    assert lines[0] and not lines[1] and not lines[-2] and len(lines) == len(commands.COMMANDS) + 4
    at = {line.index(about) for line, (_, about) in zip(lines[2:], commands.COMMANDS.values())}
    assert at == {len("  legroom calibrate  ")}


def test_a_signal_ends_a_command_as_ctrl_c_does():
    with pytest.raises(KeyboardInterrupt):
        commands._stop(signal.SIGTERM, None)


def test_an_open_stream_stays_what_it_is():
    before = (sys.stdin, sys.stdout, sys.stderr)
    commands._open_streams()
    assert (sys.stdin, sys.stdout, sys.stderr) == before
