"""How a script ended, and whose ranks are followed: without a run of it."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from legroom.cli import check as check_command
from legroom.errors import Refusal
from legroom.script_check import check, command, cuda_build, device, measure, process

PROGRAM = command.Program(command.FILE, "train.py", [])
# What stands in for the recorder, which needs torch.
BEGIN = f"""
import sys, types
sys.path.insert(0, {str(process.INSIDE)!r})
import legroom_inside
for name in ("session", "numbers"):
    sys.modules[f"legroom_inside.{{name}}"] = types.ModuleType(name)
    setattr(legroom_inside, name, sys.modules[f"legroom_inside.{{name}}"])
legroom_inside.session.Session = lambda talk, asked: None
legroom_inside.numbers.Unfollowed = type("Unfollowed", (BaseException,), {{}})
legroom_inside.begin()
"""


def said(folder, *messages):
    """The outcome of a program that has said so."""
    run = process.Run(PROGRAM, None, {}, process.Asked(), folder, lambda _: None)  # type: ignore[arg-type]
    for message in messages:
        run.handle({"kind": "end", "line": "", "error": "", **message})
    return run.result


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (40, "signal 40")])
def test_a_script_that_a_signal_has_ended_is_said_to_be(number, name):
    code = f"import os; os.kill(os.getpid(), {number})"
    environment = SimpleNamespace(python=sys.executable, cuda_major=13)
    program = command.Program(command.COMMAND, sys.executable, ["-c", code])
    outcome = process.run(program, environment, os.environ, process.Asked(sandboxed=False))  # type: ignore[arg-type]
    assert (outcome.status, outcome.error) == (process.KILLED, f"it was ended by {name}")


def test_figures_that_cannot_be_read_are_passed_over(tmp_path):
    (tmp_path / "messages.jsonl").write_text(
        '{"kind": "found", "file": "gone.json"}\n{"kind": "note", "text": "later"}\n'
    )
    run = process.Run(PROGRAM, None, {}, process.Asked(), tmp_path, lambda _: None)  # type: ignore[arg-type]
    run.read_messages()
    assert run.result.notes == ["later"]


def test_several_ranks_that_a_launcher_starts_are_not_measured(tmp_path):
    """accelerate launch starts as many as there are GPUs, which the command line does not say."""
    environment = SimpleNamespace(python=sys.executable, cuda_major=13)
    code = "import os, subprocess, sys; os.environ.update(RANK='1', WORLD_SIZE='2')"
    code += "; sys.exit(subprocess.call([sys.executable, '-c', '']))"
    program = command.Program(command.COMMAND, sys.executable, ["-c", code])
    asked = process.Asked(options={"real": True}, sandboxed=False, seconds=60)
    outcome = process.run(program, environment, os.environ, asked)  # type: ignore[arg-type]
    assert outcome.status == process.REFUSED
    assert "2 ranks are not measured" in outcome.error


@pytest.mark.parametrize(
    ("environment", "cards"),
    [
        ({}, 1),
        ({"CUDA_VISIBLE_DEVICES": "3"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, 2),
        ({"CUDA_VISIBLE_DEVICES": ""}, 1),
    ],
)
def test_the_cards_that_the_command_line_names_are_counted(environment, cards):
    assert device.typed_cards(environment) == cards


@pytest.mark.parametrize("status", [process.FAILED, process.REFUSED])
def test_a_launchers_error_does_not_hide_that_of_its_script(tmp_path, status):
    own = {"status": status, "error": "OutOfMemoryError: CUDA out of memory", "line": "train.py:3"}
    launchers = {
        "status": process.FAILED,
        "error": "CalledProcessError: Command returned non-zero exit status 1.",
    }
    outcome = said(tmp_path, own, launchers)
    assert (outcome.status, outcome.line) == (status, "train.py:3")
    assert outcome.ran_out
    assert said(tmp_path, launchers).error == launchers["error"]


def test_a_script_that_prints_its_error_has_run_out_of_memory_where_it_ends_by_that():
    assert process.Outcome(process.ENDED, exit_code=1, output="torch.OutOfMemoryError: CUDA out of memory.").ran_out
    assert not process.Outcome(process.ENDED, exit_code=0, output="CUDA out of memory: a smaller batch").ran_out


@pytest.mark.parametrize("hook", ["", "sys.excepthook = lambda *_: None\n"])
def test_an_error_is_said_also_where_the_script_shows_errors_itself(tmp_path, monkeypatch, hook):
    monkeypatch.setenv("LEGROOM_CHECK", str(tmp_path))
    subprocess.run([sys.executable, "-c", f"{BEGIN}\n{hook}1 / 0"], capture_output=True)
    assert '"error": "ZeroDivisionError: division by zero"' in (tmp_path / "messages.jsonl").read_text()


def test_the_error_is_that_of_the_run_that_came_further(monkeypatch):
    """Where 'no' has led to an error, 'yes' is tried; if that leads nowhere, its end says nothing about the script."""
    note = "train.py:7 decides by a number that nobody computed; the answer is taken to be"

    def run(program, environment, variables, asked, on_message):
        if asked.options["yes"]:
            return process.Outcome(process.REFUSED, error="a loop cannot be followed", notes=[f"{note} yes."])
        return process.Outcome(process.FAILED, error="FileNotFoundError: rows.json", notes=[f"{note} no."])

    monkeypatch.setattr(process, "environment_for", lambda *_: None)
    monkeypatch.setattr(process, "run", run)
    monkeypatch.setattr(cuda_build, "cuda_major", lambda _: 13)
    monkeypatch.setattr(device, "variables", lambda *_: {})
    (found,) = check.followed(PROGRAM, {"card": check.gpu_of("t4_16gb")}, check.Settings())
    assert "FileNotFoundError: rows.json" in found.why


@pytest.mark.parametrize(("ranks", "rank"), [(None, 1), (0, 0), (2, 2), (2, -1)])
def test_a_rank_that_is_not_there_is_refused(ranks, rank):
    with pytest.raises(Refusal, match="--gpus|--rank"):
        check.followed(PROGRAM, {}, check.Settings(ranks=ranks, rank=rank))


def test_other_ranks_than_those_of_the_launcher_are_refused():
    program = command.Program(command.FILE, "train.py", [], ranks=4)
    with pytest.raises(Refusal, match="starts 4 ranks"):
        check.followed(program, {}, check.Settings(ranks=2))


def test_several_ranks_are_not_measured():
    with pytest.raises(Refusal, match="2 ranks are not measured"):
        measure.measure(command.Program(command.FILE, "train.py", [], ranks=2))


def test_a_line_that_was_answered_yes_is_not_asked_again():
    notes = [f"train.py:{line} decides by a number that nobody computed; the answer is taken to be" for line in (3, 5)]
    outcome = process.Outcome(notes=[f"{notes[0]} no.", f"{notes[1]} yes."])
    assert check.last_decided(outcome, []) == "train.py:3"


@pytest.mark.parametrize("written", ["triton==3.4.0; platform_system", "triton ==3.4.0 ; python", "triton (==3.4.0)"])
def test_the_triton_of_a_wheel_is_read_in_each_way_that_wheels_write_it(tmp_path, written):
    folder = tmp_path / "torch-2.8.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Name: torch\nRequires-Dist: {written}\n")
    assert cuda_build.required_triton(tmp_path) == "triton==3.4.0"


def test_cards_of_this_machine_hide_none_of_the_emulated_ones(monkeypatch):
    seen = {}
    monkeypatch.setattr(device.emulated_gpu, "environment", lambda card, major, base: seen.update(base) or {})
    device.variables(check.gpu_of("rtx4090_24gb"), 12, 1, 2**30, {"CUDA_VISIBLE_DEVICES": "3", "HOME": "/"})
    assert seen == {"HOME": "/"}


def test_the_error_of_a_spawned_process_is_the_one_that_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("LEGROOM_CHECK", str(tmp_path))
    told = "\\n\\n-- Process 0 terminated with the following error:\\nTraceback (most recent call last):\\n"
    told += "  File 'train.py', line 3, in main\\n    step()\\nOutOfMemoryError: CUDA out of memory."
    kind = 'type("ProcessRaisedException", (Exception,), {})'
    raising = f'raise {kind}("{told}")'
    subprocess.run([sys.executable, "-c", f"{BEGIN}\n{raising}"], capture_output=True)
    assert "OutOfMemoryError: CUDA out of memory." in (tmp_path / "messages.jsonl").read_text()


def test_of_many_guesses_the_first_are_printed_and_the_rest_counted():
    guesses = [f"train.py:{line} decides by a number that nobody computed; the answer is no." for line in range(12)]
    other = "NCCL's buffers are counted as 1.45 GiB (published)."
    printed = check_command.first_guesses([*guesses, other])
    assert other in printed
    shown = [note for note in printed if note in guesses]
    assert shown == guesses[: len(shown)] and len(shown) < len(guesses)
    (rest,) = set(printed) - {*guesses, other}
    assert rest.startswith(f"{len(guesses) - len(shown)} more notes") and "--json" in rest
    assert check_command.first_guesses(guesses[:2]) == guesses[:2]
