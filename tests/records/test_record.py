"""The record: written whole or not at all, read back as it was, and with nothing in it that is nobody's business."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import subprocess

import pytest
from conftest import compose

from legroom import paths
from legroom.records import atomic_file, environment, record, record_file, run_folder
from legroom.records.environment import VARIABLES
from legroom.records.record import Evaluation, Memory, Speed, Training


@pytest.fixture
def filled():
    """A record with a value in every part."""
    made = compose("device=cpu").record
    made.status, made.warnings = "ok", ["a warning"]
    made.training = Training(2, 8, 256, [0.7, 0.6], 0.6)
    made.evaluation = Evaluation(4, 0.65, 0.5, None, 0.1)
    made.speed = Speed(warmup_steps=0, measured_steps=5, step_seconds_median=0.01, train_seconds=0.02)
    made.memory = Memory(
        4, 4, 8, 2, 1, 19, peak_phase="backward", largest_bytes={"parameters": 4}, per_rank=[{"rank": 0}]
    )
    made.error = record.Error("eval", "RuntimeError", "broken", "a hint", 0)
    return made


# --- written and read ------------------------------------------------------------------------------


def test_record_is_read_back(filled, tmp_path):
    record_file.write(filled, tmp_path)
    assert record_file.read(tmp_path) == filled


def test_infinite_numbers_become_null(filled, tmp_path):
    filled.training = Training(3, 3, 3, [1.0, math.nan, math.inf], -math.inf)
    filled.evaluation.perplexity = math.inf
    record_file.write(filled, tmp_path)
    text = (tmp_path / record_file.FILE_NAME).read_text()
    values = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert values["training"]["losses"] == [1.0, None, None] and values["training"]["final_loss"] is None
    assert values["evaluation"]["perplexity"] is None


@pytest.mark.parametrize("umask,mode", [(0o027, 0o640), (0, 0o666)])
def test_umask_decides_the_permissions(filled, tmp_path, umask, mode):
    old = os.umask(umask)
    try:
        record_file.write(filled, tmp_path)
    finally:
        os.umask(old)
    assert (tmp_path / record_file.FILE_NAME).stat().st_mode & 0o777 == mode


# --- whole or not at all ---------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_full_disk_leaves_the_old_record(filled, tmp_path, monkeypatch, function):
    record_file.write(filled, tmp_path)
    before = (tmp_path / record_file.FILE_NAME).read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic_file.os, function, full)
    filled.status = "failed"
    with pytest.raises(OSError, match="No space left"):
        record_file.write(filled, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [record_file.FILE_NAME]
    assert (tmp_path / record_file.FILE_NAME).read_bytes() == before


def test_interrupted_write_leaves_the_old_record(filled, tmp_path, monkeypatch):
    record_file.write(filled, tmp_path)

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(atomic_file.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        record_file.write(filled, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [record_file.FILE_NAME]


def test_missing_folder_is_an_os_error(filled, tmp_path):
    with pytest.raises(OSError):
        record_file.write(filled, tmp_path / "gone")


@pytest.mark.parametrize("content", ["", '{"schema_version": 1, "stat', "[]", "{}", '{"schema_version": 999}', "null"])
def test_invalid_record_is_a_value_error(tmp_path, content):
    (tmp_path / record_file.FILE_NAME).write_text(content)
    with pytest.raises(ValueError):
        record_file.read(tmp_path)


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda values: values.update(training=[1]), "training is not an object with fields"),
        (lambda values: values["speed"].update({"a\x1b[2Jb": 1}), "speed has fields that no record has: a\\x1b[2Jb"),
        (lambda values: values.update(unknown=1), "it has fields that no record has: unknown"),
        (lambda values: values.pop("config_key"), "it lacks config_key"),
        (lambda values: values["environment"].update(device=[1]), "environment.device is not str | None"),
    ],
    ids=["no_object", "escape_code", "unknown", "missing", "environment"],
)
def test_wrong_fields_are_named(filled, change, said):
    values = json.loads(record_file.to_json(filled))
    change(values)
    with pytest.raises(ValueError) as error:
        record_file.from_values(values, "FILE")
    assert str(error.value) == f"FILE is not a valid record: {said}"


def test_pipe_is_refused(tmp_path):
    run_folder.check_files(tmp_path)
    os.mkfifo(tmp_path / run_folder.log_name(1))
    with pytest.raises(OSError, match="a pipe has the name of one of the run's files"):
        run_folder.check_files(tmp_path)


def test_missing_record_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        record_file.read(tmp_path)


# --- the key of a job ------------------------------------------------------------------------------


def key_of(*overrides) -> str:
    return compose("device=cpu", *overrides).record.config_key


def test_same_job_has_the_same_key():
    key = key_of("optim=sgd", "train.seed=3")
    assert re.fullmatch("[0-9a-f]{12}", key)
    assert key == key_of("optim=sgd", "train.seed=3") == key_of("train.seed=3", "optim=sgd")


def test_typed_default_changes_no_key():
    assert key_of() == key_of("precision=fp32", "train.seed=0")


@pytest.mark.parametrize(
    "override",
    [
        "train.seed=1",
        "optim=adamw_fused",
        "model.layers=3",
        "recipe=accelerate",
        "measure.ledger=false",
        "launch.memory_limit_gib=1",
        "data.samples=511",
        "train.learning_rate=0.5",
        "measure.repeat=1",
    ],
)
def test_other_job_has_another_key(override):
    assert key_of() != key_of(override)


@pytest.mark.parametrize("override", ["launch.timeout_seconds=60", "tracker=none"])
def test_launch_and_tracker_are_not_in_the_key(override):
    assert key_of() == key_of(override)


def test_other_libraries_make_another_key():
    config = compose("device=cpu").record.config
    keys = {record.config_key(config, versions) for versions in ({"torch": "2.11.0"}, {"torch": "2.13.0"}, {})}
    assert len(keys) == 3


def test_derived_values_are_in_the_key():
    """The accumulation that batch.effective comes to is in the configuration that is recorded."""
    made = compose("device=cpu", "batch.effective=16").record
    assert made.config["accumulation"]["steps"] == 4 and made.config["train"]["learning_rate"] == 1e-3


# --- the environment -------------------------------------------------------------------------------


SECRETS = ("WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "SSH_AUTH_SOCK", "SOME_PASSWORD")


def test_secrets_are_not_recorded(train, monkeypatch):
    for name in SECRETS:
        monkeypatch.setenv(name, f"the-secret-of-{name}")
    run = train()
    for path in run.folder.rglob("*"):
        if path.is_file():
            text = path.read_text(errors="replace")
            assert "the-secret-of-" not in text and not any(name in text for name in SECRETS), path


def test_recorded_variables(monkeypatch):
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    environment = compose("device=cpu").record.environment
    assert environment["variables"]["NCCL_P2P_DISABLE"] == "1"
    assert set(environment["variables"]) <= set(VARIABLES)
    assert environment["versions"]["torch"] and environment["versions"]["python"]
    assert environment["device"] == "cpu" and environment["cpu_cores"] >= 1
    assert environment["device_memory_bytes"] > 2**28


def test_revision_says_whether_files_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "CHECKOUT", tmp_path)
    revision = environment.git_revision.__wrapped__  # without what this process has kept
    (tmp_path / "file").write_text("1")
    for command in ("init", "add file", "-c user.name=a -c user.email=b commit -m first"):
        subprocess.run(["git", "-C", tmp_path, *command.split()], check=True, capture_output=True)
    (tmp_path / "another").touch()
    assert re.fullmatch("[0-9a-f]{12}", revision()), "a file that git does not know is no change"
    (tmp_path / "file").write_text("2")
    assert re.fullmatch("[0-9a-f]{12}[+]changes", revision())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert revision() is None, "no git"


def test_recorded_configuration_makes_the_same_job():
    from legroom import config

    made = compose("device=cpu", "model=llama_tiny", "optim=sgd", "batch.effective=8")
    again = config.to_dict(config.from_dict(made.record.config))
    assert again == made.record.config == config.to_dict(made.cfg)
