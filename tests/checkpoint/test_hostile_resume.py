"""Checkpoints that are sealed, and yet not of this training: refused in words where they are restored, or skipped."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from legroom.records import checkpoint_files

TOLD = ["recipe=accelerate", "train.max_steps=4", "measure.ledger=false", "eval.enabled=false", "save.every_steps=2"]


@pytest.fixture(scope="module")
def whole(train):
    """A run with checkpoints after steps 2 and 4."""
    return train(*TOLD)


def seal(folder) -> None:
    """Make sizes and checksums right again after a change."""
    files = {}
    for path in folder.glob("*.safetensors"):
        files[path.name] = [path.stat().st_size, checkpoint_files.crc32(path)]
    path = folder / "rank-0.json"
    files[path.name] = [path.stat().st_size, checkpoint_files.crc32(path)]
    manifest = folder / checkpoint_files.MANIFEST
    values = json.loads(manifest.read_text()) | {"files": files}
    del values["crc32"]
    manifest.write_text(json.dumps(values | {"crc32": checkpoint_files.crc32_of_values(values)}))


def tensors(kind: str, change):
    def harm(folder):
        path = folder / f"rank-0.{kind}.safetensors"
        found = load_file(path)
        change(found)
        save_file(found, path)

    return harm


def values(change):
    def harm(folder):
        path = folder / "rank-0.json"
        found = json.loads(path.read_text())
        change(found)
        path.write_text(json.dumps(found))

    return harm


def first(found: dict) -> str:
    return next(iter(found))


def as_integers(found):
    for name in found:
        found[name] = found[name].long()


def group(**changes):
    return values(lambda found: found["optimizer"]["groups"][0].update(changes))


def twice(found):
    found["optimizer"]["groups"][1]["parameters"] += found["optimizer"]["groups"][0]["parameters"][:1]


HARMS = {
    "int64 weights": tensors("weights", as_integers),
    "a weight is missing": tensors("weights", lambda found: found.pop(first(found))),
    "a weight of another shape": tensors("weights", lambda found: found.update({first(found): torch.zeros(3)})),
    "int64 states": tensors("optimizer", as_integers),
    "a huge shape": values(lambda found: found["boxes"][first(found["boxes"])].update(shape=[10**15])),
    "no boxes": values(lambda found: found.pop("boxes")),
    "no optimizer": values(lambda found: found.pop("optimizer")),
    "no scheduler": values(lambda found: found.pop("scheduler")),
    "no random states": values(lambda found: found.pop("random")),
    "no step log": values(lambda found: found.pop("step_log")),
    "no groups": values(lambda found: found["optimizer"].update(groups=[])),
    "groups without names": group(parameters=3),
    "names that are lists": group(parameters=[[]]),
    "names of another model": group(parameters=["a", "b"]),
    "a name in two groups": values(twice),
    "a learning rate that is a text": group(lr="fast"),
    "a parameter in the settings": group(params=[1]),
    "settings of another form": group(betas=0.9),
    "nested settings": group(own={"a": {}}),
    "states of another model": values(lambda found: found["optimizer"].update(states={"x": {"step": 1}})),
    "states that are lists": values(lambda found: found["optimizer"].update(states={"x": {"step": []}})),
    "a scheduler of another form": values(lambda found: found["scheduler"].update(last_epoch="x", _last_lr=3)),
    "a random state of torch's of another length": values(lambda found: found["random"].update(torch="00")),
}


@pytest.mark.parametrize("name", HARMS)
def test_damaged_checkpoint_is_refused(whole, again, tmp_path, name):
    """Named by resume=, so that there is nothing else to take."""
    folder = tmp_path / "their" / "checkpoints/step-00000002"
    shutil.copytree(whole.folder / "checkpoints/step-00000002", folder)
    HARMS[name](folder)
    seal(folder)
    run = tmp_path / "run"
    run.mkdir()
    outcome, _ = again(run, *TOLD, f"resume={folder}", status="refused")
    assert outcome.error.type == "Refusal" and "\n" not in outcome.error.message
    assert "checkpoint" in outcome.error.message or "step-00000002" in outcome.error.message


def test_checkpoint_of_another_training_is_skipped(whole, train, again, tmp_path):
    """The parent compares the first that can be read; here its weights are cut, and the next is somebody else's."""
    other = train(*TOLD, "train.seed=7", "save.keep=9")
    shutil.copytree(whole.folder / "checkpoints/step-00000004", tmp_path / "checkpoints/step-00000004")
    shutil.copytree(other.folder / "checkpoints/step-00000002", tmp_path / "checkpoints/step-00000002")
    (tmp_path / "checkpoints/step-00000004/rank-0.weights.safetensors").write_bytes(b"")
    outcome, warned = again(tmp_path, *TOLD, "resume=latest")
    assert outcome.training.resumed_from_step is None and len(warned) == 3 and "step 0" in warned[2]
    assert "another training: train.seed=0 (there 7)" in warned[1]
    assert outcome.training.losses == whole.record.training.losses


def test_older_checkpoint_is_used(whole, train, command, tmp_path):
    from conftest import small

    from legroom.records import record_file

    other = train(*TOLD, "train.seed=7")
    for step in ("step-00000002", "step-00000004"):
        shutil.copytree(whole.folder / "checkpoints" / step, tmp_path / "run/checkpoints" / step)
    newest = "checkpoints/step-00000004/rank-0.json"
    shutil.copy(other.folder / newest, tmp_path / "run" / newest)
    ended = command(*small(*TOLD), "hydra.run.dir=run", "resume=latest")
    assert ended.code == 0, ended.err
    assert record_file.read(tmp_path / "run").training.resumed_from_step == 2
