"""A stranger's checkpoint: nothing outside it is opened, nothing blocks, and what no training saves is refused."""

from __future__ import annotations

import json
import os
import random
import time

import numpy
import pytest
import torch

from legroom.records import checkpoint_files, checkpoint_values
from legroom.records.checkpoint_files import BrokenCheckpoint

NAN = float("nan")


def states() -> dict:
    """Random states as `legroom.checkpoint.state.random_states` returns them."""
    algorithm, keys, *rest = numpy.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": [algorithm, keys.tolist(), *rest],
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "cuda": [],
    }


STEP_LOG = {
    "losses": [0.5, NAN, 0.1],
    "seconds": [1.0] * 3,
    "samples": [2] * 3,
    "tokens": [64] * 3,
    "learning_rates": [0.1] * 3,
    "gradient_norms": [None, NAN, 2.0],
    "unpadded": [None, 60, 64],
    "evaluations": [{"step": 2, "evaluation_loss": 0.5, "evaluation_accuracy": None}],
}


@pytest.fixture
def folder(tmp_path):
    """A checkpoint after three steps, whole and with every kind of value."""
    values = {
        "config": {"train": {"seed": 0}},
        "boxes": {"a": {"shape": [6], "offset": [0]}},
        "random": states(),
        "optimizer": {"groups": [{"lr": 0.1, "parameters": ["a"]}], "states": {"a": {"step": 3}}},
        "scheduler": {"last_epoch": 3},
        "scaler": None,
        "step_log": STEP_LOG,
        "fingerprints": {"data": "0" * 16},
    }
    return checkpoint_files.write(tmp_path, 3, values, {"weights": {"a": torch.arange(6.0)}}, 2)


def sealed(folder, file: str | None = None, change=None, **manifest) -> None:
    """Change the values of a JSON file of the checkpoint, or of its manifest; all sizes and checksums are right."""
    path = folder / checkpoint_files.MANIFEST
    values = json.loads(path.read_text()) | manifest
    if file is not None:
        content = (folder / file).read_bytes()
        content = change(content) if callable(change) else json.dumps(json.loads(content) | change).encode()
        (folder / file).write_bytes(content)
        values["files"][file] = [len(content), checkpoint_files.crc32(folder / file)]
    del values["crc32"]
    values["crc32"] = checkpoint_files.crc32_of_values(values)
    path.write_text(json.dumps(values))


def refused(folder, words: str) -> None:
    """Both ways to read a checkpoint refuse it at once, in a line."""
    began = time.monotonic()
    with pytest.raises(BrokenCheckpoint, match=words) as broken:
        checkpoint_files.verify(folder)
    assert time.monotonic() - began < 1 and "\n" not in str(broken.value)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"ranks": 10**9}, "does not fit"),
        ({"ranks": "1"}, "not a manifest"),
        ({"ranks": True}, "not a manifest"),
        ({"step": 3.0}, "not a manifest"),
        ({"step": 10**400}, "does not fit"),
        ({"files": []}, "not a manifest"),
        ({"files": {"../../secret.json": [1, 1]}}, "no checkpoint has"),
        ({"files": {"/etc/passwd": [1, 1]}}, "no checkpoint has"),
        ({"files": {"rank-0.json": [-1, 0]}}, "no checkpoint has"),
        ({"files": {"rank-0.json": [10**30, 0]}}, "instead of"),
        ({"files": {"rank-0.json": {}}}, "no checkpoint has"),
        ({"files": {"rank-0.weights.pickle": [1, 1], "rank-0.json": [1, 1]}}, "no checkpoint has"),
        ({"format": {}}, "another format"),
    ],
    ids=str,
)
def test_hostile_manifest_is_refused(folder, change, words):
    sealed(folder, **change)
    refused(folder, words)


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../x.safetensors": [1, 1]}},
        {"files": {"rank-1.weights.safetensors": [1, 1]}},
        {"files": []},
        {"boxes": {"a": {"shape": [6], "offset": [0, 0]}}},
        {"boxes": {"a": {"shape": [-6], "offset": [0]}}},
        {"boxes": {"a": {"shape": [1] * 100, "offset": [0] * 100}}},
        {"boxes": {"a": {"shape": [10**30], "offset": [0]}}},
        {"boxes": {"a": {"shape": 6, "offset": [0]}}},
        {"boxes": {"a": {"shape": [6]}}},
        {"boxes": []},
        {"config": None},
        {"config": {"batch": {"per_device": "a" * 100}}},
        {"config": {"train": []}},
        {"optimizer": {"groups": 3, "states": {}}},
        {"optimizer": {"groups": [{"lr": 1e30}], "states": {}}},
        {"optimizer": {"groups": [{}], "states": {"a": {"step": 1e30}}}},
        {"optimizer": {"groups": [{}], "states": {"a": 1}}},
        {"scheduler": {"last_epoch": 10**300}},
        {"scheduler": []},
        {"fingerprints": None},
        {"fingerprints": []},
        {"fingerprints": {"data": 3}},
        {"fingerprints": {"data": "x" * 16}},
        {"fingerprints": {"d" * 10**6: "0" * 16}},
        {"fingerprints": {f"name_{chr(97 + i)}": "0" * 16 for i in range(26)}},
        {"scaler": 1},
        {"step_log": None},
        {"step_log": {"losses": []}},
        {"step_log": STEP_LOG | {"gradient_norms": ["large"] * 3}},
        {"step_log": STEP_LOG | {"learning_rates": [0.1]}},
        {"step_log": STEP_LOG | {"evaluations": [{"step": "1"}]}},
        {"step_log": STEP_LOG | {"evaluations": [{"step": 1, "evaluation_loss": "low"}]}},
        {"step_log": STEP_LOG | {"seconds": [NAN] * 3}},
        {"step_log": STEP_LOG | {"samples": ["2"] * 3}},
        *({"step_log": {name: STEP_LOG[name] for name in STEP_LOG if name != lacking}} for lacking in STEP_LOG),
        {"random": {}},
        {"random": states() | {"python": [3, [0] * 624 + [625], None]}},
        {"random": states() | {"numpy": ["MT19937", [0] * 624, 10**6, 0, 0.0]}},
        {"random": states() | {"numpy": ["MT19937", [0] * 624, 625, 0, 0.0]}},
        {"random": states() | {"numpy": ["MT19937", [2**32] * 624, 1, 0, 0.0]}},
        {"random": states() | {"torch": "zz"}},
        {"random": states() | {"cuda": "00"}},
    ],
)
def test_hostile_values_are_refused(folder, change):
    sealed(folder, "rank-0.json", change)
    refused(folder, "rank-0.json cannot be used")


@pytest.mark.parametrize(
    "change",
    [
        {"boxes": {"a": {"shape": [1] * 64, "offset": [0] * 64}}},
        {"boxes": {"a": {"shape": [2**53], "offset": [0]}}},
        {"random": states() | {"numpy": ["MT19937", [2**32 - 1] * 624, 624, 0, 0.0]}},  # just seeded
        {"random": states() | {"python": [3, [0] * 624 + [624], 0.5]}},
        {"step_log": STEP_LOG | {"losses": [-1.5, 0, 1], "evaluations": [{"step": step} for step in (1, 2, 3)]}},
        {"scheduler": {"last": -(2**53)}},
    ],
    ids=range(6),
)
def test_largest_values_are_read(folder, change):
    sealed(folder, "rank-0.json", change)
    assert checkpoint_files.verify(folder).values.keys() >= change.keys()


def test_deeply_nested_values_are_refused(folder):
    values, deep = json.loads((folder / "rank-0.json").read_text()), 1
    for _ in range(5000):
        deep = {"a": deep}
    checkpoint_values.check(values, 0, 3, values["files"])
    with pytest.raises(ValueError, match="nested too deeply"):
        checkpoint_values.check(values | {"scaler": deep}, 0, 3, values["files"])


@pytest.mark.parametrize("content", [b"[" * 200_000, b'{"a":' * 200_000, b"\xff", b"[]", b"1"], ids=range(5))
@pytest.mark.parametrize("file", ["rank-0.json", "manifest.json"])
def test_json_bomb_is_refused(folder, file, content):
    if file == "manifest.json":
        (folder / file).write_bytes(content)
    else:
        sealed(folder, file, lambda _: content)
    refused(folder, file)
    with pytest.raises(BrokenCheckpoint):
        checkpoint_files.config_of(folder)


@pytest.mark.parametrize("file", ["manifest.json", "rank-0.json", "rank-0.weights.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "huge"])
def test_only_regular_files_of_the_folder_are_read(folder, tmp_path, file, kind):
    """The link's target has the right content."""
    path = folder / file
    content = path.read_bytes()
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        (tmp_path / "outside").write_bytes(content)
        path.symlink_to(tmp_path / "outside")
    elif kind == "folder":
        path.mkdir()
    else:
        with open(path, "wb") as huge:
            huge.truncate(2**40)
    refused(folder, f"{file} cannot be read \\(it is a symbolic link\\)" if kind == "link" else file)


def test_folder_with_too_many_digits_is_no_checkpoint(folder):
    folder.with_name("step-" + "9" * 200).mkdir()
    assert checkpoint_files.in_run(folder.parents[1]) == [folder]


def test_configuration_is_verified(folder, tmp_path):
    """Another run's rank-0.json in the newest checkpoint is no reason to refuse the older ones."""
    assert checkpoint_files.config_of(folder) == {"train": {"seed": 0}}
    values = json.loads((folder / "rank-0.json").read_text())
    (folder / "rank-0.json").write_text(json.dumps(values | {"config": {"train": {"seed": 1}}}))
    with pytest.raises(BrokenCheckpoint, match="rank-0.json"):
        checkpoint_files.config_of(folder)


def test_links_and_pipes_are_removed_as_leftovers(folder):
    folder.with_name(".step-00000004.unfinished").symlink_to("/")
    os.mkfifo(folder.with_name(".step-00000001.gone"))
    checkpoint_files.write(folder.parents[1], 4, {"config": {}}, {}, 2)
    assert sorted(os.listdir(folder.parent)) == ["step-00000003", "step-00000004"]
