"""The parts of a sweep under submitit, by played jobs, clocks and signals: nothing is submitted."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra.errors import HydraException
from support.made_up_records import job

from legroom.cli import submitit_jobs, sweep
from legroom.records import record_file


class Played:
    """A job of submitit's. looks: how often it is seen at work."""

    def __init__(
        self, number: int, looks: int = 0, state: str = "COMPLETED", error: str | None = "", local: bool = False
    ):
        self.job_id, self.looks, self.state, self.error = f"17_{number}", looks, state, error
        self.paths = SimpleNamespace(stderr=Path("log.err"))
        if local:
            self._process = None

    def done(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def stderr(self) -> str | None:
        return self.error


@pytest.fixture
def clock(monkeypatch):
    """A clock that a sleep moves. clock.slept: the seconds of each; clock.then: what happens while it sleeps."""
    clock = SimpleNamespace(now=0.0, slept=[], then=lambda: None)

    def sleep(seconds: float) -> None:
        clock.now += seconds
        clock.slept.append(seconds)
        clock.then()

    monkeypatch.setattr(submitit_jobs, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    return clock


@pytest.fixture
def follower(tmp_path, monkeypatch) -> submitit_jobs.Follower:
    monkeypatch.setattr(sweep, "count_jobs", lambda _: (2, {"train.seed"}))
    return submitit_jobs.Follower(sweep.Sweep("s"), tmp_path / "sweep")


def test_notes_are_printed_once(follower, capsys):
    follower.sweep.note(follower.folder, 1, "b", "ok", ["of b"])
    follower.sweep.note(follower.folder, 0, "a", sweep.STARTED)
    assert {number: note["status"] for number, note in follower.print_notes().items()} == {0: "started", 1: "ok"}
    assert capsys.readouterr() == ("of b\n", "")
    follower.sweep.note(follower.folder, 0, "a", "ok", ["of a", "and more"])
    for number in (2, 3):
        follower.sweep.note(follower.folder, number, "", sweep.INVALID, ["no such key"])
    follower.sweep.note(follower.folder, 4, "", sweep.INVALID, ["no such key", "nor this"])
    follower.print_notes()
    assert capsys.readouterr() == ("of a\nand more\n", "refused: no such key\nrefused: nor this\n")
    follower.print_notes()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("local, looks, slept", [(True, 2, [0.2, 0.2]), (False, 2, [2.0, 2.0]), (True, 0, [])])
def test_job_is_waited_for(follower, clock, local, looks, slept):
    clock.then = lambda: follower.sweep.note(follower.folder, 0, "a", "ok", ["of a"])
    if not looks:
        clock.then()
    (result,) = follower.follow(Played(0, looks, local=local), [], 0).results()
    assert result.status == submitit_jobs.JobStatus.COMPLETED and clock.slept == slept


def test_late_note_is_waited_for(follower, clock):
    follower.sweep.note(follower.folder, 0, "a", sweep.STARTED)
    clock.then = lambda: clock.now >= 8 and follower.sweep.note(follower.folder, 0, "a", "ok")
    follower.follow(Played(0), [], 0).results()
    assert clock.slept == [2.0] * 4 and follower.sweep.jobs(follower.folder)[0]["status"] == "ok"


@pytest.mark.parametrize("local, slept", [(True, []), (False, [2.0] * 8)])
def test_missing_note_is_given_up(follower, clock, capsys, local, slept):
    followed = follower.follow(Played(0, state="OUT_OF_MEMORY", error=None, local=local), ["train.seed=3", "a=1"], 0)
    followed.results()
    (note,) = follower.sweep.jobs(follower.folder)
    where = "" if local else " (OUT_OF_MEMORY)"
    line = f"  1  oom          train.seed=3  its process ended and left no record{where}: it printed no error (log.err)"
    assert (note["key"], note["status"], note["lines"]) == ("", "oom", [line]) and clock.slept == slept
    assert capsys.readouterr().out == f"{line}\n"


@pytest.mark.parametrize(
    "state, status, hinted",
    [("OUT_OF_MEMORY", "oom", True), ("TIMEOUT", "timeout", False), ("CANCELLED by 1", "killed", False)],
)
def test_ended_job_has_its_last_error_line(follower, clock, state, status, hinted):
    made = job("train.seed=3", status="failed", overrides=["train.seed=3"])
    (follower.folder / made.config_key).mkdir(parents=True)
    follower.sweep.note(follower.folder, 1, made.config_key, sweep.STARTED, initial_record=made)
    follower.follow(Played(1, state=state, error="one\nthe last\n\n"), ["train.seed=3"], 1).results()
    left = record_file.read(follower.folder / made.config_key)
    assert left.status == status and left.error is not None and bool(left.error.hint) is hinted
    said = f"its process ended and left no record ({state.split()[0]}): the last (log.err)"
    assert left.error.message == said
    (note,) = follower.sweep.jobs(follower.folder)
    assert (note["key"], note["status"]) == (made.config_key, status) and note["lines"][0].startswith(f"  2  {status} ")


# --- around Hydra's launcher --------------------------------------------------------------------------------------


@pytest.fixture
def wrapped(monkeypatch):
    """wrapped.run(folder, raised) runs `followed` around an error; wrapped.seen: what was done."""
    seen: list[Any] = []
    state = SimpleNamespace(installed=True, seen=seen)

    @contextlib.contextmanager
    def jobs_wrapped(wrap):
        seen.append("wrapped")
        started = wrap(lambda: seen.append(os.environ["PYTHONSAFEPATH"]) or ["one", "two"], ([["a"], ["b"]], 0, [4, 5]))
        seen.append([(each.job, each.overrides, each.number) for each in started])
        yield

    monkeypatch.setattr(submitit_jobs.submitit_private, "jobs_wrapped", jobs_wrapped)
    monkeypatch.setattr(submitit_jobs.submitit_private, "is_local", lambda _: True)
    monkeypatch.setattr(submitit_jobs.submitit_private, "raised_by_submitit", lambda error: "submitit" in str(error))
    monkeypatch.setattr(submitit_jobs.host, "has", lambda name: name == "submitit" and state.installed)
    monkeypatch.setattr(submitit_jobs.Follower, "stop", lambda _: seen.append("stopped"))

    def run(folder: Path | None, raised: BaseException | None = None) -> list[Any]:
        seen.clear()
        with submitit_jobs.followed(sweep.Sweep("s"), folder):
            if raised is not None:
                raise raised
        return list(seen)

    state.run = run
    return state


def test_jobs_are_followed(wrapped, tmp_path):
    done = ["wrapped", "1", [("one", ["a"], 4), ("two", ["b"], 5)]]
    assert wrapped.run(tmp_path) == done and wrapped.run(None) == []
    with pytest.raises(HydraException, match="^submitit cannot start the jobs: of submitit$"):
        wrapped.run(tmp_path, RuntimeError(" of submitit\n"))
    with pytest.raises(RuntimeError, match="ours"):
        wrapped.run(tmp_path, RuntimeError("ours"))
    assert "stopped" not in wrapped.seen
    with pytest.raises(KeyboardInterrupt):
        wrapped.run(tmp_path, KeyboardInterrupt())
    assert wrapped.seen[-1] == "stopped"
    wrapped.installed = False
    assert wrapped.run(tmp_path) == []


# --- in a task ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own, started", [(True, True), (False, False)])
def test_other_process_is_no_task(monkeypatch, own, started):
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "local") if started else monkeypatch.delenv(
        "SUBMITIT_EXECUTOR", raising=False
    )
    assert not submitit_jobs.enter(sweep.Sweep("s", (), os.getpid() if own else 1))
