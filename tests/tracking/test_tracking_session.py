"""What a tracker's process and its parent decide, with made-up trackers in this process."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from legroom.tracking import process, wandb_run
from legroom.tracking.run import Job, Run


def tracked(folder: Path, option: str = "fake", group: str | None = None, earlier=None, **settings: Any) -> Job:
    settings = {"project": "mine", "entity": None, "mode": None, "finish_seconds": 10} | settings
    return Job(option, settings, str(folder), "a name", group, ["one"], {"train": {"seed": 7}}, earlier)


class FakeRun(Run):
    """Keeps what it is given."""

    label, where, local, send_later = "Fake", "nowhere", False, "send it"

    def __init__(self, job, trouble):
        if job.name == "fails":
            raise ImportError("none here")
        self.logged, self.finished, self.trouble = [], None, trouble

    def log(self, values, step):
        if values.get("training/loss") == 13:
            raise RuntimeError("unlucky")
        self.logged.append((step, values))


@pytest.fixture
def session(tmp_path, monkeypatch):
    """session(**job) -> (the session, the states that were sent)."""
    monkeypatch.setitem(process.TRACKERS, "fake", FakeRun)

    def session(**given):
        sent: list = []
        return process.Session(
            replace(tracked(tmp_path), **given), lambda state: sent.append((state.where, [*state.troubles], state.done))
        ), sent

    return session


def line(step: int, loss: float | None = 1.0) -> str:
    return json.dumps({"step": step, "loss": loss, "seconds": 0.5, "samples": 4, "tokens": 32}) + "\n"


# --- the session -------------------------------------------------------------------------------------


def test_whole_lines_are_logged_once(session, tmp_path):
    made, sent = session()
    steps = tmp_path / "steps.jsonl"
    made.read_steps()
    assert made.run.logged == [] and sent == [("nowhere", [], False)]
    steps.write_text(line(1) + line(2)[:-5])
    made.read_steps()
    assert [step for step, _ in made.run.logged] == [1] and made.run.step == 1
    steps.write_text(line(1) + line(2) + line(3))
    made.read_steps()
    made.read_steps()
    assert [step for step, _ in made.run.logged] == [1, 2, 3] and made.run.step == 3
    assert made.run.logged[0][1] == {
        "training/loss": 1.0,
        "training/step_seconds": 0.5,
        "training/samples_per_second": 8.0,
        "training/tokens_per_second": 64.0,
    }


def test_failed_step_is_one_warning(session, tmp_path):
    made, sent = session()
    (tmp_path / "steps.jsonl").write_text(line(1, 13) + line(2, 13) + line(3))
    for _ in range(4):
        made.attempt(made.read_steps)
    assert [step for step, _ in made.run.logged] == [3] and sent[1:] == [("nowhere", ["unlucky"], False)]
    made.tell(done=True)
    assert sent[-1] == ("nowhere", ["unlucky"], True)


def test_steps_of_an_earlier_attempt(session, tmp_path):
    steps = tmp_path / "steps.jsonl"
    steps.write_text(line(1))
    made, _ = session(earlier=process.stamp(steps))
    made.read_steps()
    assert made.run.logged == []
    steps.write_text(line(1) + line(2))
    made.read_steps()
    assert [step for step, _ in made.run.logged] == [1, 2]


def test_run_that_cannot_begin(session, tmp_path):
    made, sent = session(name="fails")
    (tmp_path / "steps.jsonl").write_text(line(1))
    made.attempt(made.read_steps)
    assert made.run is None
    text = "the package fake cannot be imported (none here): pip install fake"
    assert sent == [("", [text], False)]
    other, sent = session(tracker="gone")
    assert other.run is None and sent == [("", ["'gone'"], False)]


def test_stamp_changes_with_the_file(tmp_path):
    path = tmp_path / "steps.jsonl"
    assert process.stamp(path) is None
    path.write_text("123")
    os.utime(path, ns=(5, 7))
    assert process.stamp(path) == (7, 3)


# --- texts and values --------------------------------------------------------------------------------


# --- the parent --------------------------------------------------------------------------------------


# --- W&B ---------------------------------------------------------------------------------------------


class FakeWandb(ModuleType):
    """Of wandb what a run calls; `fails`: the first start."""

    def __init__(self, fails: bool = False, url: str = "https://w/1", starting_step: int = 0):
        super().__init__("wandb")
        self.fails, self.url, self.starting_step = fails, url, starting_step
        self.started: list[dict] = []
        self.logged: list = []
        self.torn = 0
        self.summary: dict = {}
        self.settings: dict = {}
        outer = self

        class Settings:
            model_fields = {"console": 1, "init_timeout": 1, "finish_timeout": 1, "unknown": 1}

            def __init__(self, **values):
                outer.settings = values

        self.Settings = Settings

    def init(self, **given):
        self.started.append(given)
        if self.fails and len(self.started) == 1:
            (Path(given["dir"]) / "wandb" / "run-1-new").mkdir(parents=True)
            raise RuntimeError("no key")
        offline = given["mode"] == "offline"
        found = SimpleNamespace(
            offline=offline, url=None if offline else self.url, dir=f"{given['dir']}/wandb/x y/files"
        )
        found.starting_step, found.summary = self.starting_step, self.summary
        found.log = lambda values, step: self.logged.append((step, values))
        found.finish = lambda exit_code: self.logged.append(("finish", exit_code))
        return found

    def teardown(self):
        self.torn += 1
        raise SystemExit


@pytest.fixture
def wandb(monkeypatch):
    """wandb(**how) -> the fake package."""
    for name in ("WANDB_MODE", "WANDB_NAME", "WANDB_ERROR_REPORTING"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(wandb_run.WandbRun, "offline_because", None)
    monkeypatch.setattr(sys, "stderr", sys.stderr)  # a run puts its own there

    def wandb(**how):
        fake = FakeWandb(**how)
        monkeypatch.setitem(sys.modules, "wandb", fake)
        return fake

    return wandb


def test_nothing_of_this_machine_goes_to_wandb(wandb, tmp_path):
    fake = wandb(url="")
    fake.Settings.model_fields = dict.fromkeys([*wandb_run.QUIET, "init_timeout", "finish_timeout"])
    assert wandb_run.WandbRun(tracked(tmp_path), pytest.fail).local, "a run without an address is one of this machine"
    assert fake.settings.pop("stop_fn")() is None
    on = {"silent", "disable_code", "disable_git", "x_disable_meta", "x_disable_machine_info", "x_disable_stats"}
    off = {"symlink", "save_code", "x_save_requirements"}
    expected: dict[str, Any] = dict.fromkeys(on | {"finish_timeout_raises"}, True) | dict.fromkeys(off, False)
    expected |= {"console": "off", "init_timeout": 5.0, "finish_timeout": 8.0, "x_transaction_log_flush_interval": 1.0}
    assert fake.settings == expected


def test_offline_run_keeps_the_next_offline(wandb, tmp_path):
    fake, troubles = wandb(fails=True), []
    run = wandb_run.WandbRun(tracked(tmp_path), troubles.append)
    why = "no log-in or no connection (no key), so it logged offline"
    assert troubles == [why] and fake.torn == 1 and [each["mode"] for each in fake.started] == [None, "offline"]
    assert not (tmp_path / "wandb" / "run-1-new").exists() and os.environ["WANDB_MODE"] == "offline"
    assert run.local and run.where == f"logged offline; to send it: wandb sync '{tmp_path}/wandb/x y'"
    again = wandb_run.WandbRun(tracked(tmp_path), troubles.append)
    assert again.local and troubles == [why, why] and len(fake.started) == 3
