"""The record of a script that came to no verdict, and whose record may be written over."""

from __future__ import annotations

import dataclasses

import pytest
from made_up_records import job

from legroom import Refusal
from legroom.cli import check as check_command
from legroom.estimator.cards import gpu_of
from legroom.estimator.step_estimate import StepEstimate
from legroom.records import record_file
from legroom.report import rows, screen_table
from legroom.report.page import run_page
from legroom.script_check import check, check_record, command, process
from legroom.units import PARTS

NAME = "l4_24gb"


@pytest.mark.parametrize(
    "status, code, ended",
    [
        (process.FAILED, 1, ("failed", "script", "ValueError")),
        (process.ENDED, 7, ("failed", "script", "SystemExit")),
        (process.REFUSED, None, ("refused", "legroom", "Refusal")),
        (process.TIMEOUT, None, ("timeout", "legroom", "Refusal")),
        (process.MEMORY, None, ("failed", "legroom", "Refusal")),
        (process.KILLED, None, ("killed", "script", "SystemExit")),
    ],
)
def test_a_record_says_whose_an_exit_code_is(tmp_path, monkeypatch, status, code, ended):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("")
    error = {process.FAILED: f"ValueError: no {tmp_path}/rows.jsonl"}.get(status, "")
    outcome = process.Outcome(status, error=error, exit_code=code, notes=["/usr/lib/python3/one.py:3 decides"])
    program = command.parse(["script.py"])
    found = check.Checked(program, outcome, why=check.why_not(outcome), gpus={NAME: gpu_of(NAME)})
    made = check_record.record_of(found, NAME, ["--gpu", NAME])
    check_record.write(tmp_path, [found], {NAME: made})
    read = record_file.read(tmp_path)
    assert (read.status, read.program.ended_by, read.error.type) == ended and read.program.exit_code == code
    assert str(tmp_path) not in (tmp_path / "result.json").read_text() and read.warnings == ["one.py:3 decides"]
    assert run_page.data(read, tmp_path)["problem"] and read.status in screen_table.screen_text(rows.make_table([read]))


@pytest.mark.parametrize(
    "typed, kept",
    [
        ("HF_TOKEN=abc WANDB_API_KEY=abc A=1 python t.py", "HF_TOKEN=*** WANDB_API_KEY=*** A=1 python t.py"),
        (
            "t.py --hub_token abc --token=abc --password abc -v",
            "t.py --hub_token *** --token=*** --password *** -v",
        ),
        ("t.py --tokenizer abc --eos_token end --token --max_tokens 5", None),
    ],
)
def test_a_record_has_no_tokens_and_passwords(typed, kept):
    assert check_record.without_secrets(typed).replace("'", "") == (kept or typed)


def test_the_record_of_a_run_is_not_written_over(tmp_path):
    check_record.prepare(tmp_path, [NAME])
    record_file.write(job(), tmp_path)
    with pytest.raises(Refusal, match="another run"):
        check_record.prepare(tmp_path, [NAME])


def test_the_page_of_several_gpus_compares_these(tmp_path, monkeypatch):
    """And not the check of one GPU whose record lies in the same folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("")
    program, outcome = command.parse(["script.py"]), process.Outcome(process.ENDED, exit_code=7)
    for names in ([NAME], [NAME, "t4_16gb"]):
        check_record.prepare(tmp_path, names)
        found = check.Checked(program, outcome, why="it ended", gpus={name: gpu_of(name) for name in names})
        made = {name: check_record.record_of(found, name, ["--gpu", ",".join(names)]) for name in names}
        check_record.write(tmp_path, [found], made)
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2


@pytest.fixture
def followed(tmp_path, monkeypatch):
    """A script that fits, whose step takes 2 s; check takes it as the one that it has followed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("")
    card, program = gpu_of(NAME), command.parse(["script.py"])
    fields = {each.name: 0 for each in dataclasses.fields(StepEstimate)} | {"verdict": "fits", "notes": ()}
    fields |= {"parts": dict.fromkeys((part for _, part in PARTS), 0), "largest": (), "device_name": "NVIDIA L4"}
    fields |= {"bound_by": "host", "peak_phase": "step"}
    fields |= {"step_seconds": 2.0, "step_seconds_low": 1.0, "step_seconds_high": 3.0}
    done = check.Checked(program, process.Outcome(), {NAME: StepEstimate(**fields)}, gpus={NAME: card})
    monkeypatch.setattr(check, "followed", lambda *_: [done])


def test_a_number_of_steps_gives_the_hours_and_a_price_the_cost(followed, tmp_path, capsys):
    typed = ["--gpu", NAME, "--steps", "18000", "--price", "0.5", "--into", "out", "script.py"]
    assert check_command.main(typed) == 0
    run = record_file.read(tmp_path / "out").whole_run
    steps = next(part for part in run.parts if part["name"] == "steps")
    assert steps["seconds"] == 18000 * 2.0 and run.seconds == sum(part["seconds"] for part in run.parts)
    assert run.cost == pytest.approx(run.seconds / 3600 * 0.5)
    assert "hours for 18,000 steps, costs" in capsys.readouterr().out
    assert check_command.main(["--gpu", NAME, "--price", "0.5", "script.py"]) == 2
    assert "--steps" in capsys.readouterr().err


def test_what_is_asked_beside_in_vain_leaves_the_record(followed, tmp_path, capsys):
    assert check_command.main(["--gpu", NAME, "--evaluate", "--into", "out", "script.py"]) == 2
    assert "no TrainingArguments" in capsys.readouterr().err
    assert record_file.read(tmp_path / "out").estimate.verdict == "fits"


def test_the_end_of_what_a_script_printed_begins_with_its_traceback():
    failed = "a library's warning\nTraceback (most recent call last):\n  File 'a.py', line 1\nValueError: no\n"
    assert (
        check_command.tail_of(process.Outcome(process.FAILED, output=failed)).splitlines()[0]
        == "  | Traceback (most recent call last):"
    )
    assert check_command.tail_of(process.Outcome(process.FAILED, output="one\n" * 20)) == "  | one\n" * 12
