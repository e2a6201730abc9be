"""Records that are copied, of another job, damaged or hostile: left out with a line, and nothing is counted twice."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil

import pytest
from hostile_values import NAME, VALUES, paths, replaced
from made_up_records import OOM, job, put, read_all, texts_of

from legroom.records import record_file
from legroom.records.record import FITS, Estimate, Evaluation
from legroom.report import rows, tradeoff_plot
from legroom.report.files import csv_text, jsonl
from legroom.report.screen_table import screen_text
from legroom.report.tables import columns, markdown


def full():
    """A record with a value in every field."""
    made = job(device="cuda", jobs_at_once=2, job_number=1, started_at="2026-11-22T04:00:00+00:00", overrides=["a=b"])
    made.evaluation, made.error = Evaluation(4, 0.5, 0.75, None, 0.1), copy.copy(OOM)
    made.memory.largest_bytes, made.memory.per_rank = {"parameters": 1}, [{"rank": 0}]
    made.memory.all_ranks_bytes = {"peak_tensor_bytes": 3}
    made.estimate = Estimate(True, 1, 2, FITS, largest=[{"count": 1}], levers=[{"saved_bytes": 1}])
    made.config["experiment"] = {"name": "x"}
    return made


def test_copy_of_a_record_is_left_out(tmp_path):
    failed = job(status="oom", error=OOM)
    failed.environment["started_at"] = "2026-11-28T12:00:00.001+00:00"
    put(tmp_path / "runs", [job(), job("precision=bf16"), failed])
    shutil.copytree(tmp_path / "runs", tmp_path / "backup")
    records, warnings = read_all([tmp_path])
    assert len(records) == 3 and len(warnings) == 3 and all("is a copy of" in line for line in warnings)


def test_equal_refusals_are_no_copies(tmp_path):
    put(tmp_path, [job(status="refused", error=OOM)] * 2)
    assert len(read_all([tmp_path])[0]) == 2


def test_misplaced_record_is_left_out(tmp_path):
    """A sweep names a job's folder after its config_key."""
    one, other = job(), job("precision=bf16")
    for each in (one, other):
        (tmp_path / each.config_key).mkdir()
        record_file.write(one, tmp_path / each.config_key)
    records, warnings = read_all([tmp_path])
    assert [found.config_key for found in records] == [one.config_key]
    assert len(warnings) == 1 and f"the record of another job, {one.config_key}" in warnings[0]


def test_wrong_values_end_no_report(tmp_path):
    """A part of all replacements, drawn anew each time; the seed is printed."""
    seed = random.SystemRandom().randrange(10**6)
    print("seed", seed)
    values = json.loads(record_file.to_json(full()))
    record_file.from_values(values)  # or every one below would be left out
    cases = [(path, value) for path in paths(values) for value in VALUES]
    put(tmp_path / "good", [job("precision=bf16", job_number=0)])
    (tmp_path / "bad").mkdir()
    for path, value in random.Random(seed).sample(cases, 150):
        (tmp_path / "bad" / record_file.FILE_NAME).write_text(json.dumps(replaced(values, path, value)))
        records, warnings = read_all([tmp_path])
        assert len(records) + len(warnings) == 2
        made = rows.make_table(records)
        csv_text(made), jsonl(made)
        for text in (*screen_text(made, 120).splitlines(), *markdown(made).splitlines(), *warnings):
            assert text.isprintable(), (path, text)


def test_missing_section_ends_no_report():
    sections = list(full().config)
    for section in sections:
        null, missing = full(), full()
        for found in (null, missing):
            found.config["gpu"]["price_per_hour"] = 1.0
        null.config[section] = None
        del missing.config[section]
        for found in (null, missing):
            assert columns(rows.make_table([found]))["status"] == ["ok"], section


@pytest.mark.parametrize("content", [b"[" * 10**5, b"\xff\xfe", b'{"a": NaN}', b"\0" * 100], ids=range(4))
def test_invalid_json_is_left_out(tmp_path, content):
    (tmp_path / record_file.FILE_NAME).write_bytes(content)
    records, warnings = read_all([tmp_path])
    assert not records and len(warnings) == 1


def test_link_to_itself_is_left_out(tmp_path):
    put(tmp_path, [job()])
    (tmp_path / "loop").mkdir()
    os.symlink(tmp_path / "loop/result.json", tmp_path / "loop/result.json")
    records, warnings = read_all([tmp_path])
    assert len(records) == 1 and len(warnings) == 1 and "loop/result.json is left out" in warnings[0]


def test_pipes_and_huge_files_are_left_out(tmp_path, monkeypatch):
    for name in ("pipe", "large"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "pipe" / record_file.FILE_NAME)
    with open(tmp_path / "large" / record_file.FILE_NAME, "wb") as file:
        file.truncate(2**40)  # takes no room on the disk
    records, warnings = read_all([tmp_path])
    assert not records and "larger than" in warnings[0] and "not a regular file" in warnings[1]


def test_control_characters_are_escaped():
    foreign = job(f"data.path={json.dumps(NAME)}", error=copy.copy(OOM), environment={})
    foreign.error.message = foreign.error.hint = foreign.speed.bound_by = NAME
    foreign.recipe, foreign.status, foreign.estimate = "estimate", "oom", Estimate(False, -1, 2, NAME)
    foreign.environment["device_name"] = foreign.environment["git_revision"] = NAME
    made = rows.make_table([foreign, job("data.path=x")])
    for text in (screen_text(made, 120), markdown(made)):
        assert all(line.isprintable() for line in text.splitlines())
        assert r"\x1b[31m" in text
    for text in texts_of(tradeoff_plot.figure(made)):
        assert all(line.isprintable() for line in text.split("\n"))
