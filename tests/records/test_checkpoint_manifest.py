"""The limits of what a checkpoint may hold, each with what lies on both sides of it; and what writing one leaves."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from legroom.records import atomic_file, checkpoint_files
from legroom.records.checkpoint_files import BrokenCheckpoint

NAN, INFINITY, LARGEST = float("nan"), float("inf"), 2**53

# --- values ----------------------------------------------------------------------------------------


LISTS = ("losses", "seconds", "samples", "tokens", "learning_rates", "gradient_norms", "unpadded", "evaluations")


# --- files -----------------------------------------------------------------------------------------


def write(run: Path, step: int, keep: int = 2, **how: Any) -> Path:
    log = {name: [1] * step for name in LISTS if name != "evaluations"} | {"evaluations": []}
    values = {"config": {}, "fingerprints": {}, "step_log": log}
    return checkpoint_files.write(run, step, values, {"weights": {"a": torch.arange(2.0)}}, keep, **how)


def test_files_are_flushed_before_the_rename(tmp_path, monkeypatch):
    """Every file, the folder's list of them, then the name, and then the list in which that stands."""
    seen: list[str] = []
    flush, rename = os.fsync, os.rename
    monkeypatch.setattr(
        os, "fsync", lambda file: seen.append(Path(f"/proc/self/fd/{file}").readlink().name) or flush(file)
    )
    monkeypatch.setattr(
        checkpoint_files.os, "rename", lambda a, b: seen.append(f"{a.name} -> {b.name}") or rename(a, b)
    )
    write(tmp_path, 3)
    unfinished = ".step-00000003.unfinished"
    assert seen == [
        "rank-0.weights.safetensors",
        "rank-0.json",
        "manifest.json",
        unfinished,
        f"{unfinished} -> step-00000003",
        "checkpoints",
    ]


def test_each_rank_writes_its_files(tmp_path):
    """The ranks meet before the files, after them, and when the checkpoint has its name."""
    told: list[str] = []

    def other() -> None:
        told.append(",".join(sorted(path.name for path in (tmp_path / "checkpoints").iterdir())))
        if len(told) == 2:
            write(tmp_path, 1, rank=1, ranks=2)

    folder = write(tmp_path, 1, ranks=2, barrier=other)
    assert told == [".step-00000001.unfinished"] * 2 + ["step-00000001"]
    assert checkpoint_files.verify(folder).step == 1 and len(checkpoint_files.verify(folder).ranks) == 2


def test_only_rank_0_removes_the_folder(tmp_path):
    def fails() -> None:
        raise KeyboardInterrupt

    unfinished = tmp_path / "checkpoints" / ".step-00000001.unfinished"
    unfinished.mkdir(parents=True)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, 1, rank=1, ranks=2, barrier=fails)
    assert unfinished.is_dir()
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, 1, barrier=fails)
    assert not unfinished.exists()


def test_discard_all_keeps_other_files(tmp_path):
    for step in (1, 2, 3):
        write(tmp_path, step, keep=9)
    checkpoint_files.prune(tmp_path, 2, 1)
    assert [path.name for path in checkpoint_files.in_run(tmp_path)] == ["step-00000002"]
    (tmp_path / "checkpoints" / "mine").touch()
    checkpoint_files.discard_all(tmp_path)
    assert os.listdir(tmp_path / "checkpoints") == ["mine"]
    (tmp_path / "checkpoints" / "mine").unlink()
    checkpoint_files.discard_all(tmp_path)
    assert not (tmp_path / "checkpoints").exists()
    checkpoint_files.discard_all(tmp_path)


def test_names_of_checkpoints(tmp_path):
    digits = {n: f"step-{'1' * n}" for n in (7, 8, 15, 16)}
    for name in (*digits.values(), "step-0000000a", ".step-00000001.gone", "step-00000001.x"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert [path.name for path in checkpoint_files.in_run(tmp_path)] == [digits[15], digits[8]]
    assert checkpoint_files.folder_name(12) == "step-00000012" and checkpoint_files.in_run(tmp_path / "none") == []


def test_leftovers_of_killed_saves_are_removed(tmp_path):
    inside, links = tmp_path / "checkpoints", tmp_path / "elsewhere"
    for folder in (".step-1.unfinished", ".step-2.gone", "step-00000003", ".other"):
        (inside / folder / "deep").mkdir(parents=True)
    for folder in (".model.unfinished", ".model.gone", ".model-differs.gone", "model", ".models"):
        (tmp_path / folder / "deep").mkdir(parents=True)
    links.mkdir()
    (inside / ".step-4.gone").symlink_to(links)
    (inside / ".step-5.unfinished").touch()
    checkpoint_files.tidy(tmp_path)
    assert sorted(os.listdir(inside)) == [".other", "step-00000003"]
    assert sorted(os.listdir(tmp_path)) == [".models", "checkpoints", "elsewhere", "model"]


def test_new_folder_replaces_the_old(tmp_path):
    new, old = tmp_path / ".new", tmp_path / "model"
    for folder, text in ((new, "new"), (old, "old")):
        folder.mkdir()
        (folder / "file").write_text(text)
    checkpoint_files.put_in_place(new, old)
    assert (old / "file").read_text() == "new" and os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize(
    "change, said",
    [
        ({"step": -1}, "is not a manifest"),
        ({"step": True}, "is not a manifest"),
        ({"ranks": -1}, "is not a manifest"),
        ({"ranks": None}, "is not a manifest"),
        ({"files": None}, "is not a manifest"),
        ({"step": 2}, "does not fit its folder"),
        ({"ranks": 0}, "does not fit its folder"),
        ({"ranks": 2}, "does not fit its folder"),
        ({"ranks": 3}, "does not fit its folder"),
        ({"files": {"rank-0.weights.safetensors": [1, 1]}}, "does not fit its folder"),
        ({"files": {"rank-0.json": [1]}}, "names files that no checkpoint has"),
        ({"files": {"rank-0.json": [1, 1, 1]}}, "names files that no checkpoint has"),
        ({"files": {"rank-0.json": [1, True]}}, "names files that no checkpoint has"),
        ({"files": {"rank-0.json": [1, -1]}}, "names files that no checkpoint has"),
        ({"files": {"rank-0.json": "12"}}, "names files that no checkpoint has"),
        ({"files": {"rank-1234567.json": [1, 1]}}, "names files that no checkpoint has"),
        ({"format": 2}, "is of another format (2, not 1)"),
        ({"format": "a" * 99}, "is of another format ('aaaaaaaaaaaaaaaaaaa, not 1)"),
        ({"crc32": 1}, "is damaged"),
    ],
    ids=range(19),
)
def test_wrong_manifest_is_refused(change, said, tmp_path):
    folder = write(tmp_path, 1)
    path = folder / "manifest.json"
    values = json.loads(path.read_text()) | change
    if "crc32" not in change:
        del values["crc32"]
        values["crc32"] = checkpoint_files.crc32_of_values(values)
    path.write_text(json.dumps(values))
    with pytest.raises(BrokenCheckpoint) as broken:
        checkpoint_files.verify(folder)
    assert str(broken.value) == f"{path} {said}"


# --- one file --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError(28, "full"), OSError("no number"), KeyboardInterrupt()], ids=str)
def test_unwritable_file_is_named(error, tmp_path, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr(atomic_file.os, "replace", fail)
    with pytest.raises(type(error)) as failed:
        atomic_file.write(tmp_path / "a.json", b"1")
    assert os.listdir(tmp_path) == []
    if isinstance(error, OSError):
        assert isinstance(failed.value, OSError) and failed.value.filename == str(tmp_path / "a.json")
        assert failed.value.strerror == (error.strerror or str(error))
        with pytest.raises(OSError) as failed:
            atomic_file.try_writing(tmp_path / "a.json", 3)
        assert failed.value.filename == str(tmp_path / "a.json") and failed.value.errno == error.errno


def test_clear_escapes_special_characters(tmp_path):
    names = [".a[1]-x.json", ".a1-x.json", ".a[1]-x.txt", ".a[1].json", "a[1].json"]
    for name in names:
        (tmp_path / name).touch()
    atomic_file.clear(tmp_path / "a[1].json")
    assert sorted(os.listdir(tmp_path)) == sorted(names[1:])
