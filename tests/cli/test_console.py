"""What a person reads: the summary of a run that went well, of one that did not, and of one that measured little."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from pathlib import Path

import pytest
import rich.console
from conftest import compose, small

from legroom.cli import brief, console
from legroom.records import record
from legroom.records.record import Error, Evaluation, Memory, Speed, Training

GIB = 2**30


@pytest.fixture
def outcome():
    """A run of AdamW in mixed precision, in round numbers: a gigabyte is 2 ** 28 weights of 4 bytes."""
    made = compose("device=cpu", "precision=bf16", "model=bert_large").record
    made.status = "ok"
    made.training = Training(10, 40, 400, [1.0, 0.5], 0.5)
    made.speed = Speed(3, 7, 0.5, 0.4, 0.6, 8.0, 80.0, 10**12, 0.25, train_seconds=5.0)
    made.memory = Memory(
        parameters_bytes=GIB * 3 // 2,
        gradients_bytes=GIB,
        optimizer_bytes=2 * GIB,
        activations_bytes=GIB // 2,
        other_bytes=0,
        peak_tensor_bytes=5 * GIB,
        peak_phase="backward",
        parameter_count=2**28,
        weights_bytes=GIB,
        largest_bytes={
            "parameters": GIB,
            "weight_copies": GIB // 2,
            "gradients": GIB,
            "optimizer": 2 * GIB,
            "activations": GIB,
            "other": 0,
        },
        host_peak_rss_bytes=GIB,
    )
    return made


@pytest.mark.parametrize("flops, shown", [(10**9, "1,000,000,000"), (1200, "1,200")])
def test_small_figures_are_not_zero(outcome, flops, shown):
    outcome.speed.model_flops_per_step = flops
    assert f" {shown}" in brief.brief(outcome, Path("here"), verbose=True)


def test_verbose_summary_has_the_guides_terms(outcome):
    """18 bytes a parameter for training in mixed precision with AdamW, 6 for inference."""
    text = brief.brief(outcome, Path("here"), verbose=True)
    rows = {line.split()[0]: line for line in text.splitlines()}
    assert "500.00 ms" in rows["speed.step_seconds_median"] and "8.0" in rows["speed.samples_per_second"]
    assert "25.0%" in rows["speed.mfu"] and "1,024.0 MiB" in rows["memory.host_peak_rss_bytes"]
    largest = {name: float(rows[f"memory.largest_bytes.{name}"].split()[3]) for name in outcome.memory.largest_bytes}
    inference = largest["parameters"] + largest["weight_copies"]
    assert inference == 6 and inference + largest["optimizer"] + largest["gradients"] == 18
    assert "here/result.json" in rows["Details"]


def test_verbose_summary_of_a_gpu(outcome):
    for key in ("device_used_bytes", "peak_reserved_bytes", "peak_allocated_bytes", "context_bytes"):
        setattr(outcome.memory, key, 3 * GIB)
    text = brief.brief(outcome, Path("here"), verbose=True)
    assert "3 GiB of the GPU" in text and "memory.context_bytes" in text and "3,072.0 MiB" in text


def test_verbose_summary_leaves_out_missing_figures(outcome):
    """A driver that says what is used and not what the context takes; a record without the count of parameters."""
    outcome.memory.device_used_bytes = 3 * GIB
    outcome.memory.parameter_count = outcome.speed.step_seconds_median = outcome.speed.step_seconds_p10 = None
    text = brief.brief(outcome, Path("here"), verbose=True)
    assert "memory.device_used_bytes" in text and "3,072.0 MiB" in text and "context" not in text
    assert "reserved" not in text and "a parameter" not in text and "speed.samples_per_second" in text


@pytest.mark.parametrize("status", record.STATUSES)
def test_every_status_has_a_summary(status):
    """Also where nothing was measured yet."""
    made = compose("device=cpu").record
    made.status = status
    made.error = None if status == "ok" else Error("load", "Kind", "what happened\nsecond line", "what to do")
    text = brief.brief(made, Path("here"), verbose=True)
    assert text.startswith(f"{status}: ") and "result.json" in text
    if made.error:
        assert "what happened" in text and "what to do" in text and "second line" not in text


def test_nan_is_said_in_words(outcome):
    """As a record has them after a loss that was no number."""
    outcome.training = Training(2, 8, 80, [None, None], None)
    outcome.evaluation = Evaluation(4, None, None, None, 0.1)
    assert "not a number" in brief.brief(outcome, Path("here"), verbose=True)


@pytest.mark.parametrize("model", ["bert_tiny", "gpt2_tiny"])
def test_summary_of_a_diverged_run(command, model):
    ended = command(
        *small(
            f"model={model}",
            "optim=sgd",
            "optim.momentum=0",
            "train.max_grad_norm=0",
            "train.learning_rate=1e15",
            "train.max_steps=4",
        )
    )
    assert ended.code == 4 and "not a number" in ended.out
    assert "Traceback" not in ended.err + ended.out


def test_warnings_are_counted_at_the_end(command):
    ended = command(*small("batch.per_device=3"))
    assert "warning: batch.per_device=3" in ended.err and "1 warning above" in ended.out


def test_closed_stdout_is_no_failure():
    """`python train.py | head -1`: nobody reads the pipe any more when the summary comes."""
    program = (
        "import os; read, write = os.pipe(); os.dup2(write, 1); os.close(write); os.close(read); "
        "from legroom.cli import console; console.say('text')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(console.__file__).parents[2],
    )
    assert ended.returncode == 0 and ended.stderr == ""


def test_control_characters_are_escaped(capfd):
    """A name may come from a record or a folder of someone else."""
    console.say("one\x1b[2Jtwo\nthree\u202efour")
    console.say_problems(["a\x1b]0;title\x07b"])
    ended = capfd.readouterr()
    assert ended.out == "one\\x1b[2Jtwo\nthree\\u202efour\n" and ended.err == "refused: a\\x1b]0;title\\x07b\n"


def test_a_long_search_says_what_it_does_and_for_how_long(monkeypatch, capsys):
    monkeypatch.setattr(console, "BEAT_SECONDS", 0.05)
    with console.Heartbeat("extrapolating") as beat:
        time.sleep(0.2)
        beat.show("3 estimated, 1 fit")
        time.sleep(0.2)
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert not said.out and lines[0] == "extrapolating (0 s)" and lines[-1] == "3 estimated, 1 fit (0 s)"
    with console.Heartbeat("extrapolating", silent=True):  # as --json asks
        time.sleep(0.2)
    assert not capsys.readouterr().err


def test_on_a_terminal_the_line_is_drawn_with_its_seconds(monkeypatch):
    screen = io.StringIO()
    terminal = rich.console.Console(file=screen, force_terminal=True, width=80, legacy_windows=False)
    monkeypatch.setattr(console, "rich_stderr", lambda: terminal)
    with console.Heartbeat("script.py is read") as beat:
        beat.show("script.py has taken [step 1]")
        time.sleep(0.3)
    assert "script.py has taken [step 1] (0 s)" in screen.getvalue()
