"""What a sweep knows of its jobs, says of each, and concludes: by made-up records and notes, without a job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.made_up_records import job

from legroom.cli import exit_codes, job_state, sweep
from legroom.records import record, record_file
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
def test_unusable_record_is_named(tmp_path, content, why):
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
def test_resumable_job_keeps_its_folder(tmp_path, content, resume, checkpoint, stays):
    folder = folder_with(tmp_path, content, checkpoint)
    before = sorted(path.name for path in folder.iterdir())
    sweep.clear(folder, resume)
    assert sorted(path.name for path in folder.iterdir()) == (before if stays else [])


# --- what is known of jobs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "swept, shown", [(set(), ["+a=1", "b=2", "c.d=3"]), ({"a", "c.d"}, ["+a=1", "c.d=3"]), ({"x"}, [])]
)
def test_distinguishing_overrides(swept, shown):
    assert sweep.distinguishing_overrides(["+a=1", "b=2", "c.d=3"], swept) == shown


def test_command_runs():
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


def test_note_has_the_record(tmp_path):
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
        (3 * MIB, 0, "memory 3.0 of 0.0 MiB"),
        (0, 4 * MIB, "memory 0.0 of 4.0 MiB (0%)"),
    ],
)
def test_memory_has_the_unit_of_its_limit(used, limit, said):
    assert job_state.memory_text(used, limit) == said


@pytest.mark.parametrize(
    "seconds, said",
    [(0, "0:00:00"), (59.6, "0:01:00"), (3599, "0:59:59"), (3600, "1:00:00"), (90061, "25:01:01")],
)
def test_clock(seconds, said):
    assert job_state.clock(seconds) == said


# --- its end ------------------------------------------------------------------------------------------------------


def test_exit_codes():
    assert (exit_codes.REFUSED, exit_codes.OUT_OF_MEMORY, exit_codes.INTERRUPTED) == (2, 3, 130)
    by_status = {"ok": 0, "preempted": 0, "refused": 2, "oom": 3, "diverged": 4, "interrupted": 130}
    assert dict(exit_codes.OF_STATUS) == by_status
