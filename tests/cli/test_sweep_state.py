"""What a sweep knows of its jobs, says of each, and concludes: by made-up records and notes, without a job."""

from __future__ import annotations

import contextlib
import os
import types
from pathlib import Path
from typing import Any

import psutil
import pytest
from omegaconf import OmegaConf
from support.made_up_records import job

from legroom.cli import exit_codes, job_state, single_run, sweep, sweep_run
from legroom.errors import Refusal
from legroom.records import record, record_file
from legroom.records.messages import StepsDone
from legroom.records.record import Record
from legroom.units import GIB, MIB


def ended(status: str = "ok", key: str = "own", **parts: Any) -> Record:
    made = job(status=status)
    made.config_key = key
    for name, part in parts.items():
        setattr(made, name, part)
    return made


# --- the folder of a job ------------------------------------------------------------------------------------------


def folder_with(root: Path, content: Record | str | None, checkpoint: bool = True) -> Path:
    """A job's folder called `own` with this record or text in its record's file, a file and a checkpoint."""
    folder = root / "own"
    folder.mkdir()
    (folder / "steps.jsonl").touch()
    (folder / "tracker").mkdir()
    (folder / "link").symlink_to(folder / "tracker")
    if checkpoint:
        (folder / "checkpoints" / "step-00000002").mkdir(parents=True)
    if isinstance(content, Record):
        record_file.write(content, folder)
    elif content is not None:
        (folder / record_file.FILE_NAME).write_text(content)
    return folder


@pytest.mark.parametrize("status", record.STATUSES)
def test_only_results_are_final(tmp_path, status):
    found = sweep.final_record(folder_with(tmp_path, ended(status)))
    assert (found is not None) is (status in ("ok", "oom", "diverged", "refused"))


@pytest.mark.parametrize(
    "content, why",
    [
        (None, None),
        (ended(), None),
        (ended(key="other"), "since it is that of another job, other."),
        ("{", "since it cannot be used: "),
    ],
    ids=["none", "own", "another's", "broken"],
)
def test_a_record_that_is_not_the_jobs_own_is_named_and_not_taken(tmp_path, content, why):
    folder = folder_with(tmp_path, content)
    said = sweep.unusable_record(folder)
    assert (said is None) is (why is None) and (why or "") in (said or "")
    assert (sweep.final_record(folder) is not None) is (isinstance(content, Record) and content.config_key == "own")


@pytest.mark.parametrize(
    "content, resume, checkpoint, stays",
    [
        (None, False, True, False),
        (None, True, True, True),
        (None, True, False, False),
        (ended("preempted"), False, True, True),
        (ended("preempted"), False, False, False),
        (ended("preempted", "other"), False, True, False),
        *[(ended(how), False, True, True) for how in ("interrupted", "killed", "timeout")],
        (ended("failed"), False, True, False),
        (ended("failed"), True, True, True),
        ("{", False, True, True),
        ("{", False, False, False),
    ],
    ids=range(13),
)
def test_what_an_unfinished_job_left_stays_where_it_can_be_resumed(tmp_path, content, resume, checkpoint, stays):
    folder = folder_with(tmp_path, content, checkpoint)
    before = sorted(path.name for path in folder.iterdir())
    sweep.clear(folder, resume)
    assert sorted(path.name for path in folder.iterdir()) == (before if stays else [])


# --- what is known of jobs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "swept, shown", [(set(), ["+a=1", "b=2", "c.d=3"]), ({"a", "c.d"}, ["+a=1", "c.d=3"]), ({"x"}, [])]
)
def test_a_job_is_called_by_what_tells_it_from_others(swept, shown):
    assert sweep.distinguishing_overrides(["+a=1", "b=2", "c.d=3"], swept) == shown


def test_an_ended_command_does_not_run():
    started = psutil.Process().create_time()
    own = sweep.Sweep("s", (), os.getpid(), started)
    assert own.command_runs()
    assert not sweep.Sweep("s", (), os.getpid(), started - 1).command_runs()
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    born = psutil.Process(child).create_time()
    assert not sweep.Sweep("s", (), child, born).command_runs(), "a zombie"
    os.waitpid(child, 0)
    assert not sweep.Sweep("s", (), child, born).command_runs()


def test_a_note_has_the_record_of_its_job(tmp_path):
    ours = sweep.Sweep("a")
    ours.note(tmp_path, 3, "own", sweep.STARTED, ["one"], ended())
    (note,) = ours.jobs(tmp_path)
    assert record_file.from_values(note["record"]).config_key == "own"
    ours.note(tmp_path, 3, "own", "ok", ["two"])
    assert ours.jobs(tmp_path) == [{"job": 3, "key": "own", "status": "ok", "lines": ["one", "two"], "record": None}]
    assert [path.name for path in (tmp_path / sweep.JOBS_FOLDER / "a").iterdir()] == ["3.json"]


# --- its state on the screen --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "used, limit, said",
    [
        (GIB // 2, GIB, "memory 0.5 of 1.0 GiB (50%)"),
        (MIB, GIB - 1, "memory 1.0 of 1024.0 MiB (0%)"),
        (3 * MIB, None, "memory 3.0 of 0.0 MiB"),
        (None, 4 * MIB, "memory 0.0 of 4.0 MiB (0%)"),
    ],
)
def test_the_memory_in_use_has_the_unit_of_what_there_is(used, limit, said):
    assert job_state.memory_text(StepsDone(1, 0.5, 1.0, used, limit)) == said


@pytest.mark.parametrize(
    "seconds, said",
    [(None, ""), (0, "0:00:00"), (59.6, "0:01:00"), (3599, "0:59:59"), (3600, "1:00:00"), (90061, "25:01:01")],
)
def test_a_time_has_hours_minutes_and_seconds(seconds, said):
    assert job_state.clock(seconds) == said


# --- a job in it --------------------------------------------------------------------------------------------------


class Job:
    """One job of a sweep, whose run is played."""

    def __init__(self, monkeypatch, folder: Path):
        self.monkeypatch, self.folder = monkeypatch, folder
        self.sweep = sweep.Sweep("s", ("-m", "a=1,2"), os.getpid())
        self.seen: list[Any] = []
        self.cfg = types.SimpleNamespace(objective=None, resume=None)
        self.in_task = False
        monkeypatch.setattr(sweep_run.submitit_jobs, "enter", lambda _: self.in_task)
        monkeypatch.setattr(sweep_run.submitit_jobs, "preemptible", self.preemptible)
        monkeypatch.setattr(sweep_run.sweeps, "end_with_command", lambda _: self.seen.append("ends with the command"))
        monkeypatch.setattr(sweep_run.sweeps, "count_jobs", lambda _: (2, {"a"}))
        monkeypatch.setattr(sweep_run.sweeps, "fork_server", lambda: "server")
        monkeypatch.setattr(sweep_run.compose, "menu_folders", lambda _: [])
        monkeypatch.setattr(sweep_run.report, "prepare", lambda: self.seen.append("pictures are prepared"))

    @contextlib.contextmanager
    def preemptible(self, in_task):
        yield lambda: self.seen.append("requeued")

    def run(
        self, number=0, status: str | Exception = "ok", problems=(), sweeper="x.BasicSweeper", made=True, **launcher
    ):
        outcome = ended("failed", "own", overrides=["a=1", "b=2"]) if made else None

        def run_in(folder, job, display, source):
            self.seen.append((folder.name, source, display.position, display.quiet, job.group, list(job.differs)))
            self.seen.append(
                [job.cfg.resume, job.record.config.get("resume"), [text[:65] for text in job.record.warnings]]
            )
            if isinstance(status, Exception):
                raise status
            job.record.status = status
            record_file.write(job.record, folder)
            return job.record

        cfg = self.cfg if made else None
        self.monkeypatch.setattr(sweep_run.compose, "prepare", lambda *_: (cfg, outcome, list(problems)))
        self.monkeypatch.setattr(single_run, "run_in", run_in)
        values = {"job": {"num": number}, "sweeper": {"_target_": sweeper}, "launcher": launcher}
        self.seen.clear()
        found = sweep_run.run_in_sweep(None, OmegaConf.create(values), self.sweep, self.folder)  # type: ignore[arg-type]
        return found

    def notes(self) -> list[list[Any]]:
        return [[each["job"], each["key"], each["status"], each["lines"]] for each in self.sweep.jobs(self.folder)]


@pytest.fixture
def played(monkeypatch, tmp_path) -> Job:
    return Job(monkeypatch, tmp_path / "s")


def test_a_task_notes_its_start_and_leaves_its_lines_to_the_command(played, capsys):
    played.in_task = True
    played.run(number=1)
    ((number, key, status, lines),) = played.notes()
    assert (number, key, status) == (1, "own", "ok") and lines == capsys.readouterr().out.splitlines()
    assert ("own", None, "2/2", True, "s", ["a=1"]) in played.seen and "ends with the command" not in played.seen
    played.run(number=2, status=Refusal("locked"))
    (played.folder / "own" / record_file.FILE_NAME).unlink()
    played.run(number=3, status=Refusal("locked"))
    assert played.notes()[-1] == [3, "own", "refused", ["locked"]]


# --- its end ------------------------------------------------------------------------------------------------------


def test_the_codes_are_those_of_the_documentation():
    assert (exit_codes.REFUSED, exit_codes.OUT_OF_MEMORY, exit_codes.INTERRUPTED) == (2, 3, 130)
    by_status = {"ok": 0, "preempted": 0, "refused": 2, "oom": 3, "diverged": 4, "interrupted": 130}
    assert dict(exit_codes.OF_STATUS) == by_status
