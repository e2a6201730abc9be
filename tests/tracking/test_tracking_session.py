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
from tracked_job import cfg, record

from legroom.tracking import local_runs, process, trackers, wandb_run
from legroom.tracking.run import SECRETS, Job, Result, Run, flat, reason


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


def test_whole_lines_are_logged_once_as_they_come(session, tmp_path):
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


def test_a_step_that_fails_is_not_logged_again_and_told_once(session, tmp_path):
    made, sent = session()
    (tmp_path / "steps.jsonl").write_text(line(1, 13) + line(2, 13) + line(3))
    for _ in range(4):
        made.attempt(made.read_steps)
    assert [step for step, _ in made.run.logged] == [3] and sent[1:] == [("nowhere", ["unlucky"], False)]
    made.tell(done=True)
    assert sent[-1] == ("nowhere", ["unlucky"], True)


def test_the_steps_of_an_earlier_attempt_are_not_this_runs(session, tmp_path):
    steps = tmp_path / "steps.jsonl"
    steps.write_text(line(1))
    made, _ = session(earlier=process.stamp(steps))
    made.read_steps()
    assert made.run.logged == []
    steps.write_text(line(1) + line(2))
    made.read_steps()
    assert [step for step, _ in made.run.logged] == [1, 2]


def test_a_run_that_cannot_begin_says_so_and_logs_nothing(session, tmp_path):
    made, sent = session(name="fails")
    (tmp_path / "steps.jsonl").write_text(line(1))
    made.attempt(made.read_steps)
    assert made.run is None
    text = "the package fake cannot be imported (none here): pip install fake"
    assert sent == [("", [text], False)]
    other, sent = session(tracker="gone")
    assert other.run is None and sent == [("", ["'gone'"], False)]


def test_a_file_is_told_from_what_becomes_of_it(tmp_path):
    path = tmp_path / "steps.jsonl"
    assert process.stamp(path) is None
    path.write_text("123")
    os.utime(path, ns=(5, 7))
    assert process.stamp(path) == (7, 3)


# --- texts and values --------------------------------------------------------------------------------


def test_nested_values_are_flat_and_none_is_left_out():
    values = {"a": {"b": 1, "c": None, "d": {"e": 0, "f": False}}, "g": "", "h": [None], "i": {}}
    assert flat(values) == {"a/b": 1, "a/d/e": 0, "a/d/f": False, "g": "", "h": [None]}


@pytest.mark.parametrize("name", SECRETS)
def test_a_reason_names_no_key(name, monkeypatch):
    for other in SECRETS:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, "short")
    assert reason("no short key, short at http://a:b@host/x.") == "no *** key, *** at http://***@host/x"
    assert reason("a" * 39 + " " + "b" * 40) == "a" * 39 + " ***" and len(reason("ab " * 200)) == 300


# --- the parent --------------------------------------------------------------------------------------


def test_the_parts_of_a_record_are_its_summary():
    found = record("failed")
    found.evaluation = None
    values = trackers.summary(found)
    assert values["status"] == "failed" and not any(key.startswith("evaluation") for key in values)
    assert "training/losses" not in values and values["training/steps"] == 40


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


def test_an_online_run_says_where_it_is_and_how_it_is_sent(wandb, tmp_path):
    fake, troubles = wandb(), []
    job = tracked(tmp_path, group="g" * 200)
    run = wandb_run.WandbRun(replace(job, name="n" * 200), troubles.append)
    files = f"'{tmp_path}/wandb/x y'"
    assert (run.local, run.where, run.send_later) == (False, "https://w/1", f"wandb sync --include-online {files}")
    assert fake.settings == {"console": "off", "init_timeout": 5.0, "finish_timeout": 8.0}
    (given,) = fake.started
    assert (given["name"], given["group"], given["id"], given["resume"]) == ("n" * 128, "g" * 128, None, None)
    assert (given["mode"], given["project"], given["tags"], given["job_type"]) == (None, "mine", ["one"], "run")
    assert os.environ["WANDB_ERROR_REPORTING"] == "false" and troubles == []


def test_nothing_of_this_machine_goes_to_wandb_but_what_the_record_says(wandb, tmp_path):
    fake = wandb(url="")
    fake.Settings.model_fields = dict.fromkeys([*wandb_run.QUIET, "init_timeout", "finish_timeout"])
    assert wandb_run.WandbRun(tracked(tmp_path), pytest.fail).local, "a run without an address is one of this machine"
    assert fake.settings.pop("stop_fn")() is None
    on = {"silent", "disable_code", "disable_git", "x_disable_meta", "x_disable_machine_info", "x_disable_stats"}
    off = {"symlink", "save_code", "x_save_requirements"}
    expected: dict[str, Any] = dict.fromkeys(on | {"finish_timeout_raises"}, True) | dict.fromkeys(off, False)
    expected |= {"console": "off", "init_timeout": 5.0, "finish_timeout": 8.0, "x_transaction_log_flush_interval": 1.0}
    assert fake.settings == expected


def test_a_run_that_cannot_go_online_is_offline_and_so_are_the_next(wandb, tmp_path):
    fake, troubles = wandb(fails=True), []
    run = wandb_run.WandbRun(tracked(tmp_path), troubles.append)
    why = "no log-in or no connection (no key), so it logged offline"
    assert troubles == [why] and fake.torn == 1 and [each["mode"] for each in fake.started] == [None, "offline"]
    assert not (tmp_path / "wandb" / "run-1-new").exists() and os.environ["WANDB_MODE"] == "offline"
    assert run.local and run.where == f"logged offline; to send it: wandb sync '{tmp_path}/wandb/x y'"
    again = wandb_run.WandbRun(tracked(tmp_path), troubles.append)
    assert again.local and troubles == [why, why] and len(fake.started) == 3


@pytest.mark.parametrize(
    "mode, variable, resume", [(None, "", "allow"), ("offline", "", None), (None, "offline", None)]
)
def test_a_resumed_run_has_the_id_of_the_newest_of_its_folder(mode, variable, resume, wandb, tmp_path, monkeypatch):
    fake = wandb(starting_step=3)
    monkeypatch.setenv("WANDB_MODE", variable)
    monkeypatch.setenv("WANDB_NAME", "my name")
    for age, name in enumerate(("run-3-old", "offline-run-1-newest", "run-2-middle")):
        folder = tmp_path / "wandb" / name
        folder.mkdir(parents=True)
        os.utime(folder, (0, (100, 300, 200)[age]))
    run = wandb_run.WandbRun(tracked(tmp_path, mode=mode), pytest.fail)
    assert (fake.started[0]["id"], fake.started[0]["resume"], fake.started[0]["name"]) == ("newest", resume, "my name")
    for step in (2, 3, 4):
        run.log({"a": step}, step)
    assert fake.logged == [(3, {"a": 3}), (4, {"a": 4})], "W&B has the earlier ones"
    run.finish(Result({"status": "ok"}, 3))
    assert fake.logged[-1] == ("finish", 3) and fake.summary == {"status": "ok"} and fake.torn == 1
    left = {path.name for path in (tmp_path / "wandb").iterdir()}
    kept = set() if mode else {"offline-run-1-newest"}  # the offline run that goes on has its steps, too
    assert left == {"run-3-old", "run-2-middle"} | kept


def test_a_sweeps_offline_runs_are_sent_by_one_command(tmp_path):
    assert wandb_run.WandbRun.sweep_line(tmp_path) == "" == local_runs.TensorboardRun.sweep_line(tmp_path)
    (tmp_path / "job" / "wandb" / "offline-run-1").mkdir(parents=True)
    (tmp_path / "job" / "tensorboard").mkdir()
    line = f"to send the whole sweep: wandb sync {tmp_path}/*/wandb/offline-run-*"
    assert wandb_run.WandbRun.sweep_line(tmp_path) == line
    assert local_runs.TensorboardRun.sweep_line(tmp_path) == f"tensorboard --logdir {tmp_path}"
    assert FakeRun.sweep_line(tmp_path) == ""
    assert trackers.sweep_line(cfg(), tmp_path) == f"W&B: {line}"
    assert trackers.sweep_line(cfg(), tmp_path / "other") == "" == trackers.sweep_line(cfg(mode="disabled"), tmp_path)


# --- TensorBoard -------------------------------------------------------------------------------------


class Writer:
    """Keeps what it is given."""

    def __init__(self, folder):
        self.folder, self.told = folder, []
        Path(folder).mkdir()

    def add_scalar(self, name, value, step):
        self.told.append((name, value, step))

    def flush(self):
        self.told.append("flush")

    def close(self):
        self.told.append("close")


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("steps", [0, 1])
def test_event_files_end_with_the_summary(earlier, steps, tmp_path, monkeypatch):
    summary = ModuleType("tensorboard.summary")
    summary.Writer = Writer  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "tensorboard", ModuleType("tensorboard"))
    monkeypatch.setitem(sys.modules, "tensorboard.summary", summary)
    if earlier:
        (tmp_path / "tensorboard" / "old").mkdir(parents=True)
    run = local_runs.TensorboardRun(tracked(tmp_path), pytest.fail)
    for step in range(steps):
        run.log({"a": 1.0}, step)
        run.step = step + 5
    run.finish(Result({"status": "ok", "b": 2}, 0))
    if earlier and not steps:
        assert run.writer is None and (tmp_path / "tensorboard" / "old").is_dir()
    else:
        first = [("a", 1.0, 0), "flush"] * steps
        writer: Any = run.writer
        assert writer.told == [*first, ("b", 2, 5 * steps), "flush", "close"]
        assert not (tmp_path / "tensorboard" / "old").exists()
