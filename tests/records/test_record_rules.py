"""Decision tables of what reads, checks and words a record."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from made_up_records import job

from legroom.records import messages, record, record_file, regular_file, run_folder
from legroom.records.printable import printable
from legroom.records.record import Estimate, Operations

# --- words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "recipe, status, estimate, shown, verdict",
    [
        ("trainer", "ok", None, "ok", None),
        ("trainer", "oom", None, "oom", None),
        ("estimate", "oom", Estimate(False, -1, 2), "does not fit", "does not fit"),
        ("estimate", "failed", Estimate(False, -1, 2, "tight"), "failed", "tight"),
        ("estimate", "ok", Estimate(True, 1, 2), "ok", "fits"),
        ("estimate", "ok", Estimate(False, 1, 2, "tight"), "tight", "tight"),
        ("estimate", "ok", None, "ok", None),
    ],
)
def test_status_of_an_estimate_is_its_verdict(recipe, status, estimate, shown, verdict):
    found = job(status=status)
    found.recipe, found.estimate = recipe, estimate
    assert record.shown_status(found) == shown
    assert (estimate and record.verdict_of(estimate)) == verdict


def test_seconds_of_a_group_are_summed():
    rows = [("a", 1), ("b", 2.5), ("a", 0.5), ("c", None), ("b", 0)]
    groups: list[dict] = [{"group": group, "seconds": seconds} for group, seconds in rows]
    assert Operations("cpu", [*groups, {"group": "d"}]).seconds() == {"a": 1.5, "b": 2.5}


@pytest.mark.parametrize(
    "text, keep, shown",
    [
        ("plain ü 漢", "", "plain ü 漢"),
        ("a\tb\x1b[31m", "", "a\\tb\\x1b[31m"),
        ("a\nb\rc", "\n", "a\nb\\rc"),
        ("right\u202eleft", "", "right\\u202eleft"),
        ("\u2028\u2029\ud800", "", "\\u2028\\u2029\\ud800"),
        ("no-break\xa0space\x00", "", "no-break\xa0space\\x00"),
    ],
)
def test_control_characters_are_escaped(text, keep, shown):
    assert printable(text, keep) == shown


# --- types -----------------------------------------------------------------------------------------

VALUES = [None, True, 1, 1.5, -1e300, 1.1e300, -1.1e300, float("nan"), "a", [], [1], [None], ["a"], {}, {"a": 1}]
VALUES += [{"a": None}, [[1.0]]]
KINDS: list[Any] = [
    Any,
    int,
    float,
    bool,
    str,
    list,
    dict,
    str | None,
    float | None,
    list[int],
    list[float],
    list[float | None],
]
KINDS += [dict[str, int], dict[str, float], list[list[float]], dict[str, dict]]


@pytest.mark.parametrize(
    "config, said",
    [
        ({}, None),
        ({"train": None}, None),
        ({"train": []}, "config.train is not a dictionary"),
        ({"train": {"seed": None}}, None),
        ({"train": {"seed": "1"}}, "config.train.seed is not <class 'int'>"),
        ({"train": {"seed": 1, "of an older version": "x"}}, None),
        ({"unknown": {"seed": "x"}}, None),
        ({"compile": "yes"}, "config.compile is not <class 'bool'>"),
        ({"resume": 3}, "config.resume is not str | None"),
        ({"resume": "latest"}, None),
    ],
    ids=str,
)
def test_wrong_type_in_the_configuration_is_named(config, said):
    try:
        record_file.check_config(config)
        assert said is None
    except ValueError as error:
        assert str(error) == said


@pytest.mark.parametrize(
    "environment, said",
    [
        ({}, "environment lacks device, device_name"),
        ({"versions": {}, "variables": {}, "device": None, "device_name": "x"}, None),
        ({"versions": None}, "environment.versions is not <class 'dict'>"),
        ({"variables": []}, "environment.variables is not <class 'dict'>"),
        ({"device": 1}, "environment.device is not str | None"),
        ({"device_name": {}}, "environment.device_name is not str | None"),
        ({"cpu": [1], "device": "cpu", "device_name": "x"}, None),
    ],
    ids=str,
)
def test_wrong_type_in_the_environment_is_named(environment, said):
    values = json.loads(record_file.to_json(job())) | {"environment": environment}
    try:
        assert record_file.from_values(values, "FILE").environment == environment and said is None
    except ValueError as error:
        assert str(error) == f"FILE is not a valid record: {said}"


@pytest.mark.parametrize("section", record_file.READ)
def test_incomplete_configuration_is_refused(section):
    values = json.loads(record_file.to_json(job()))
    del values["config"][section]
    with pytest.raises(ValueError, match=f"FILE is not a valid record: config lacks {section}"):
        record_file.from_values(values, "FILE")
    assert record_file.from_values(values | {"recipe": "estimate"}, "FILE"), "that of a script has its GPU alone"


# --- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, kind, said",
    [
        ("steps.jsonl", "pipe", "pipe"),
        ("log.txt", "pipe", "pipe"),
        ("log-rank3.txt", "pipe", "pipe"),
        ("other.txt", "pipe", None),
        ("log.txt", "file", None),
        ("model", "file", "file"),
        ("checkpoints", "file", "file"),
        ("model", "link to nowhere", "file"),
        ("model", "folder", None),
        ("checkpoints", "folder", None),
    ],
)
def test_file_in_the_way_of_a_run_is_refused(tmp_path, name, kind, said):
    path = tmp_path / name
    make = {
        "pipe": os.mkfifo,
        "file": Path.touch,
        "folder": Path.mkdir,
        "link to nowhere": lambda p: p.symlink_to("no"),
    }
    make[kind](path)
    if said is None:
        return run_folder.check_files(tmp_path)
    texts = {"pipe": "a pipe has the name of one of the run's files", "file": "a file has the name of one of the run's"}
    with pytest.raises(OSError, match=texts[said]) as refused:
        run_folder.check_files(tmp_path)
    assert refused.value.errno == (errno.EINVAL if said == "pipe" else errno.ENOTDIR)
    assert refused.value.filename == str(path)


def test_links_are_followed_on_request(tmp_path):
    (tmp_path / "file").write_bytes(b"12")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "circle").symlink_to("circle")
    assert regular_file.read(tmp_path / "link", 2) == b"12" == regular_file.read(tmp_path / "file", 2, False)
    with pytest.raises(OSError, match="it is a symbolic link"):
        regular_file.read(tmp_path / "link", 2, follow_links=False)
    with pytest.raises(OSError, match="Too many levels"):
        regular_file.read(tmp_path / "circle", 2)
    with pytest.raises(OSError, match="No such file"):
        regular_file.read(tmp_path / "missing", 2, follow_links=False)
    with pytest.raises(OSError, match="not a regular file"):
        regular_file.read(tmp_path, 2)
    opened = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
    for _ in range(3):
        with pytest.raises(OSError):
            regular_file.open_regular(tmp_path)
    assert not opened or len(os.listdir("/proc/self/fd")) == opened, "what is refused is closed"


@pytest.mark.parametrize(
    "text, constants, value", [(b"NaN", True, math.nan), (b"-Infinity", True, -math.inf), (b"[1]", False, [1])]
)
def test_nan_is_read_on_request(text, constants, value):
    assert regular_file.decode_json(text, constants) == pytest.approx(value, nan_ok=True)
    if constants:
        with pytest.raises(ValueError, match="is not a number of JSON"):
            regular_file.decode_json(text)


# --- messages --------------------------------------------------------------------------------------


def test_failure_is_sent_as_json():
    failed = messages.RankFailed("oom", record.Error("step", "A", "b", "c", 3), True)
    assert messages.RankFailed.from_dict(json.loads(json.dumps(failed.to_dict()))) == failed
    calm = messages.RankFailed("failed", record.Error("load", "A", "b"))
    assert messages.RankFailed.from_dict(calm.to_dict()) == calm and not calm.lost_contact
