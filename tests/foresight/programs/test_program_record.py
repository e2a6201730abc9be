"""The record of a script that came to no verdict, and whose record may be written over."""

from __future__ import annotations

import dataclasses

import pytest
from made_up_records import job

from legroom import Refusal
from legroom.cli import check as check_command
from legroom.foresight.programs import check, command, process, program_record
from legroom.foresight.step_estimate import StepEstimate, gpu_of
from legroom.records import record_file
from legroom.report import report, screen_table
from legroom.report.page import run_page
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
    found = check.Checked(program, outcome, why=check.why_not(program, outcome), gpus={NAME: gpu_of(NAME)})
    made = program_record.record_of(found, NAME, ["--gpu", NAME])
    program_record.write(tmp_path, [found], {NAME: made})
    read = record_file.read(tmp_path)
    assert (read.status, read.program.ended_by, read.error.type) == ended and read.program.exit_code == code
    assert str(tmp_path) not in (tmp_path / "result.json").read_text() and read.warnings == ["one.py:3 decides"]
    assert run_page.data(read, tmp_path)["problem"] and read.status in screen_table.screen_text(report.compare([read]))


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
    assert program_record.without_secrets(typed).replace("'", "") == (kept or typed)


def test_the_record_of_a_run_is_not_written_over(tmp_path):
    program_record.prepare(tmp_path, [NAME])
    record_file.write(job(), tmp_path)
    with pytest.raises(Refusal, match="another run"):
        program_record.prepare(tmp_path, [NAME])


def test_the_page_of_several_gpus_compares_these(tmp_path, monkeypatch):
    """And not the check of one GPU whose record lies in the same folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("")
    program, outcome = command.parse(["script.py"]), process.Outcome(process.ENDED, exit_code=7)
    for names in ([NAME], [NAME, "t4_16gb"]):
        program_record.prepare(tmp_path, names)
        found = check.Checked(program, outcome, why="it ended", gpus={name: gpu_of(name) for name in names})
        made = {name: program_record.record_of(found, name, ["--gpu", ",".join(names)]) for name in names}
        program_record.write(tmp_path, [found], made)
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2


def test_what_is_asked_beside_in_vain_leaves_the_record(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("")
    card, program = gpu_of(NAME), command.parse(["script.py"])
    fields = {each.name: 0 for each in dataclasses.fields(StepEstimate)} | {"verdict": "fits", "notes": ()}
    fields |= {"parts": dict.fromkeys((part for _, part in PARTS), 0), "largest": (), "device_name": "NVIDIA L4"}
    fields |= {"bound_by": "host", "peak_phase": "step"}
    done = check.Checked(program, process.Outcome(), {NAME: StepEstimate(**fields)}, gpus={NAME: card})
    monkeypatch.setattr(check, "followed", lambda *_: [done])
    assert check_command.main(["--gpu", NAME, "--evaluate", "--into", "out", "script.py"]) == 2
    assert "no TrainingArguments" in capsys.readouterr().err
    assert record_file.read(tmp_path / "out").estimate.verdict == "fits"
    assert check_command.main(["--device", "cpu", "--into", "out", "script.py"]) == 2
    assert "--into" in capsys.readouterr().err


@pytest.mark.parametrize("words, shown", [(["--json"], False), ([], True)])
def test_on_a_cpu_json_is_alone_and_the_answer_comes_with_progress(tmp_path, monkeypatch, capsys, words, shown):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("")
    counted = {"tensor_bytes": 3 << 20, "notes": ["a note"], **{f"{part}_bytes": 0 for _, part in PARTS}}

    def on_cpu(program, settings, on_message=None):
        on_message({"kind": "step", "step": 2, "seconds": 1.0})
        return counted, process.Outcome()

    monkeypatch.setattr(check, "on_cpu", on_cpu)
    monkeypatch.setattr(check_command.sys.stderr, "isatty", lambda: True)
    assert check_command.main(["--device", "cpu", *words, "script.py"]) == 0
    printed, progress = capsys.readouterr()
    assert ("has taken step 2, after 1 s" in progress) is shown
    assert ("3 MiB of live tensors" in printed) is shown and ('"tensor_bytes": 3145728' in printed) is not shown


def test_the_end_of_what_a_script_printed_begins_with_its_traceback():
    failed = "a library's warning\nTraceback (most recent call last):\n  File 'a.py', line 1\nValueError: no\n"
    assert (
        check_command.tail_of(process.Outcome(process.FAILED, output=failed)).splitlines()[0]
        == "  | Traceback (most recent call last):"
    )
    assert check_command.tail_of(process.Outcome(process.FAILED, output="one\n" * 20)) == "  | one\n" * 12
