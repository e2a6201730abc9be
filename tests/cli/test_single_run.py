"""One run from its configuration to its summary, whose training is played: what is refused, kept, replaced and said."""

from __future__ import annotations

import os
import shutil
import types
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from support.made_up_records import job

from legroom.cli import console, single_run
from legroom.machine import host
from legroom.records import record_file
from legroom.records.checkpoint_files import UNFINISHED_MODEL
from legroom.records.record import Record


class Display:
    """The screen, which keeps what it is told."""

    seen: list[Any] = []

    def __init__(self, beats: bool = False): ...

    def __enter__(self):
        self.seen.append("begins")

    def __exit__(self, *_):
        self.seen.append("ends")

    def warn(self, text: str) -> None:
        self.seen.append(f"warns: {text[:70]}")

    def on_message(self, _) -> None: ...

    def finish(self, outcome: Record, folder: Path) -> None:
        self.seen.append(f"finishes: {outcome.status} in {folder.name}, warnings {outcome.warnings}"[:110])


class Played:
    """Runs in folders of a working directory; `did` gives what came of one."""

    def __init__(self, monkeypatch, folder: Path, capsys):
        self.patch, self.root, self.capsys = monkeypatch, folder, capsys
        self.tracker_line, self.tracker_warnings = "", []
        self.main = True
        patch = monkeypatch.setattr
        patch(console, "Console", Display)
        patch(single_run, "current_rank", lambda: types.SimpleNamespace(is_main=self.main))
        patch(single_run.compose, "menu_folders", lambda _: [])
        patch(single_run.trackers, "open_tracker", self.open_tracker)
        patch(single_run.parallelism, "ignored", lambda *_: ["a key is ignored"])
        patch(single_run.validate, "warnings", lambda _: ["of the configuration"])
        patch(single_run.run_page, "write", self.write_page)
        patch(single_run.supervise, "run", self.run)

    def open_tracker(self, cfg, outcome, folder, group, differs):
        self.say(f"tracks: group {group}, differs {list(differs)}")
        return types.SimpleNamespace(finish=lambda _: self.tracker_warnings, line=self.tracker_line)

    def say(self, text: str) -> None:
        Display.seen.append(text)

    def write_page(self, outcome, folder, sweep):
        self.say(f"page: {outcome.status}, sweep {sweep and sweep.name}")
        if self.page_error is not None:
            raise self.page_error

    def run(self, launched, on_message, source=None):
        if launched.folder is None:
            return types.SimpleNamespace(status=f"ran rank, record {launched.record.status}")
        self.say(f"trains with {sorted(path.name for path in launched.folder.iterdir())}, source {source}")
        if isinstance(self.status, Exception):
            raise self.status
        launched.record.status, launched.record.error = self.status, self.error
        record_file.write(launched.record, launched.folder)
        return launched.record

    def did(
        self, *typed: str, status: Any = "ok", error=None, problems=(), page_error=None, prepared: Any = None, **lie
    ):
        """What came of a run. lie: answers of `resume`, by function."""
        Display.seen.clear()
        self.status, self.error, self.page_error = status, error, page_error
        made = job(*typed, status="failed", overrides=typed)
        cfg = host.configuration(made.config)

        def prepare(*_):
            if isinstance(prepared, Exception):
                raise prepared
            return prepared or (cfg, made, list(problems))

        values = {"runtime": {"output_dir": "run"}, "sweep": {"dir": "sweep"}, "overrides": {"hydra": []}}
        with self.patch.context() as patch:
            patch.setattr(single_run.compose, "prepare", prepare)
            for name, answer in lie.items():
                patch.setattr(single_run.resume, name, lambda *_, answer=answer, **__: answer)
            returned = single_run.run_alone(None, OmegaConf.create(values))  # type: ignore[arg-type]
        said = self.capsys.readouterr()
        folder = self.root / "run"
        texts = [text.replace(str(self.root), "ROOT").splitlines() for text in (said.out, said.err)]
        found = {"returned": returned, "out": texts[0], "err": texts[1], "seen": list(Display.seen)}
        if (folder / record_file.FILE_NAME).is_file():
            left = record_file.read(folder)
            warned = [text.replace(str(self.root), "ROOT") for text in left.warnings]
            found["record"] = [left.status, warned, left.error.message if left.error else None]
        return found


@pytest.fixture
def played(monkeypatch, tmp_path, capsys) -> Played:
    monkeypatch.chdir(tmp_path)
    return Played(monkeypatch, tmp_path, capsys)


def emptied(folder: str = "run") -> Path:
    """A new, empty folder of a run."""
    shutil.rmtree(folder, ignore_errors=True)
    Path(folder).mkdir()
    return Path(folder)


def test_folder_of_hydra_is_removed_on_resume(played):
    older = emptied("older").absolute()
    lie = {"resume_folder": older, "matching_record": None, "damaged_record": None, "mismatch_problems": []}
    emptied()
    assert played.did("resume=latest", begins_anew=[], **lie)["returned"] == "ok"
    assert not Path("run").exists() and record_file.read(older).status == "ok"
    (emptied() / "kept").touch()  # which somebody has put there
    (older / record_file.FILE_NAME).unlink()
    assert played.did("resume=latest", begins_anew=[], **lie)["returned"] == "ok" and Path("run", "kept").exists()


def test_folder_of_other_ranks_is_kept_on_resume(played):
    older = emptied("older").absolute()
    emptied("sweep")
    played.main = False
    lie = {"resume_folder": older, "matching_record": None, "damaged_record": None, "mismatch_problems": []}
    assert played.did("resume=latest", begins_anew=[], **lie)["returned"].startswith("ran rank")
    assert Path("sweep").is_dir()


def test_leftovers_are_removed_first(played):
    (emptied() / "checkpoints" / ".step-00000003.unfinished").mkdir(parents=True)
    (Path("run") / UNFINISHED_MODEL).mkdir()
    assert played.did()["seen"][-4] == "trains with ['checkpoints'], source None"
    assert not list(Path("run", "checkpoints").iterdir())


@pytest.mark.parametrize(
    "final, model, checkpoint, resume, refused",
    [
        (True, True, False, None, True),
        (False, True, False, None, False),
        (True, False, False, None, False),
        (True, False, True, None, True),
        (True, True, True, "latest", False),
        (True, True, False, "latest", True),
        (False, False, True, "latest", False),
        (False, False, True, None, True),
    ],
)
def test_occupied_folder_is_refused(played, final, model, checkpoint, resume, refused):
    folder = emptied()
    if model:
        (folder / "model").mkdir()
        (folder / "model" / "config.json").touch()
    if checkpoint:
        (folder / "checkpoints" / "step-00000002").mkdir(parents=True)
    lie = {"matching_record": None, "damaged_record": None, "mismatch_problems": [], "begins_anew": []}
    words = [f"save.final={str(final).lower()}", f"resume={resume or 'null'}"]
    found = played.did(*words, resume_folder=folder.absolute(), **lie)
    assert found["returned"] == ("refused" if refused else "ok")
    assert any("or continue that training: resume=latest" in line for line in found["err"]) is (refused and not resume)


@pytest.mark.parametrize(
    "content, occupied", [(None, False), ("ok", True), ("failed", True), ("refused", False), ("{", True)]
)
def test_record_of_a_refusal_may_be_replaced(tmp_path, content, occupied):
    if content == "{":
        (tmp_path / record_file.FILE_NAME).write_text(content)
    elif content is not None:
        record_file.write(job(status=content), tmp_path)
    assert single_run.is_occupied(tmp_path) is occupied


def test_other_ranks_make_no_folder(played):
    played.main = False
    found = played.did()
    assert found["returned"] == "ran rank, record failed" and not os.listdir(played.root)
    refused = played.did(problems=["no"])
    assert (refused["returned"], refused["err"], os.listdir(played.root)) == ("refused", [], [])


@pytest.mark.parametrize(
    "error, key, said",
    [
        (
            OSError(13, "Permission denied", "x"),
            "a",
            "x cannot be written: Permission denied. Choose another folder with a=.",
        ),
        (OSError("odd"), "b", "the run folder cannot be written: odd. Choose another folder with b=."),
    ],
    ids=range(2),
)
def test_unwritable_folder_is_named(error, key, said):
    assert single_run.unwritable(error, key) == said
