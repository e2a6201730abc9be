"""Checkpoints on disk: whole or not at all, checked before they are opened, and nothing in them is executed."""

from __future__ import annotations

import errno
import os

import pytest
import torch

from legroom.measure.step_log import SAVED
from legroom.records import checkpoint_files
from legroom.records.checkpoint_files import BrokenCheckpoint


def write(run, step: int, keep: int = 2):
    """A checkpoint of a few numbers."""
    tensors = {"weights": {"a": torch.arange(6.0)}, "optimizer": {"a/step": torch.tensor(float(step))}}
    log = {name: [1] * step for name in SAVED if name != "evaluations"} | {"evaluations": []}
    values = {"config": {"step": step}, "fingerprints": {"data": "0" * 16}, "step_log": log}
    return checkpoint_files.write(run, step, values, tensors, keep)


def names(run) -> list[str]:
    return sorted(path.name for path in (run / checkpoint_files.FOLDER).iterdir())


def test_written_checkpoint_is_whole(tmp_path):
    folder = write(tmp_path, 10)
    assert folder == tmp_path / "checkpoints/step-00000010" and checkpoint_files.in_run(tmp_path) == [folder]
    whole = checkpoint_files.verify(folder)
    assert (whole.step, whole.values["config"], checkpoint_files.config_of(folder)) == (10, {"step": 10}, {"step": 10})
    assert sorted(path.name for path in folder.iterdir()) == [
        "manifest.json",
        "rank-0.json",
        "rank-0.optimizer.safetensors",
        "rank-0.weights.safetensors",
    ]


def test_newest_checkpoints_are_kept(tmp_path):
    for step in (2, 4, 6, 8):
        write(tmp_path, step)
    assert names(tmp_path) == ["step-00000006", "step-00000008"]
    write(tmp_path, 7)  # resumed from 6, because 8 was broken, say
    assert names(tmp_path) == ["step-00000006", "step-00000007"]
    write(tmp_path, 7, keep=1)  # over one of the same step
    assert names(tmp_path) == ["step-00000007"]
    assert checkpoint_files.verify(tmp_path / "checkpoints/step-00000007").step == 7


FILES = ["manifest.json", "rank-0.json", "rank-0.optimizer.safetensors", "rank-0.weights.safetensors"]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("harm", ["missing", "cut", "changed", "empty"])
def test_damaged_file_is_named(tmp_path, file, harm):
    folder = write(tmp_path, 3)
    path = folder / file
    content = path.read_bytes()
    middle = len(content) // 2
    if harm == "missing":
        path.unlink()
    else:
        path.write_bytes(
            {
                "cut": content[:middle],
                "empty": b"",
                "changed": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
            }[harm]
        )
    with pytest.raises(BrokenCheckpoint, match=file):
        checkpoint_files.verify(folder)


def test_full_disk_leaves_earlier_checkpoints(tmp_path, monkeypatch):
    write(tmp_path, 2)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError):
        write(tmp_path, 4)
    assert names(tmp_path) == ["step-00000002"]
    checkpoint_files.verify(tmp_path / "checkpoints/step-00000002")
