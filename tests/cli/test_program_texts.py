"""What `check`, `measure` and `fit` say in a terminal, from made-up figures: no script runs."""

from __future__ import annotations

import io
import os

import pytest

from legroom.cli import check, check_levers, console, fit, measure
from legroom.foresight.programs import process
from legroom.foresight.programs.command import Program
from legroom.foresight.programs.measure import Measurement
from legroom.foresight.programs.process import Outcome
from legroom.foresight.programs.try_levers import Lever, Trial, Tryout
from legroom.foresight.step_estimate import StepEstimate
from legroom.records.record import Error, Estimate, Record
from legroom.units import GIB, MIB


def estimate(used: int, seconds: float, verdict: str = "fits") -> StepEstimate:
    """Of `used` MiB of device memory."""
    largest = [{"bytes": 4 * MIB, "part": "activations", "made_by": "a.b", "count": 3}]
    largest += [{"bytes": MIB, "part": "parameters", "made_by": "", "count": 1}] * 9
    return StepEstimate(
        device_name="L4",
        verdict=verdict,
        left_bytes=MIB,
        kept_bytes=0,
        capacity_bytes=GIB,
        device_used_bytes=used * MIB,
        context_bytes=0,
        reserved_bytes=0,
        allocated_bytes=0,
        tensor_bytes=0,
        parts=dict.fromkeys(("parameters", "gradients", "optimizer", "activations", "other"), 0),
        peak_phase="forward",
        timeline=(),
        largest=tuple(largest),
        step_seconds=seconds,
        step_seconds_low=seconds,
        step_seconds_high=seconds,
        bound_by="host",
        device_seconds=0.0,
        host_seconds=seconds,
        model_flops=None,
        notes=("assumed",),
        _trace=None,
    )


def trial(typed: str, *figures, why: str = "") -> Trial:
    return Trial([Lever("optim", typed)], estimate(*figures) if figures else None, why)


@pytest.fixture
def made() -> Record:
    return Record("estimate", [], {}, "", {}, estimate=Estimate(False, -1, 1, "does not fit"))


# --- check ------------------------------------------------------------------------------------------------------


NO_SCRIPT = "no script is named. Type it behind the options: train.py --batch_size 8"


@pytest.mark.parametrize(
    "words, said",
    [
        (["--margin", "1"], "--margin 1.0: it must be a share of the reserved memory, at least 0 and below 1."),
        (["--margin", "-0.1"], "--margin -0.1: it must be a share of the reserved memory, at least 0 and below 1."),
        (["--gpu", "t4_16gb,l4_24gb", "--try"], "--try: name one GPU; --gpu has 2."),
        (["--gpu", "t4_16gb,t4_16gb", "--try"], NO_SCRIPT),
        (["--margin", "0"], NO_SCRIPT),
    ],
    ids=range(5),
)
def test_what_check_cannot_use_is_refused_before_the_script_is_read(words, said, capsys):
    assert check.main(["--gpu", "l4_24gb", *words]) == 2
    assert capsys.readouterr().err == f"refused: {said}\n"


def test_the_largest_tensors_stand_above_the_notes():
    lines = check.text_of(estimate(1, 0.1)).splitlines()
    at = lines.index("  largest at the peak")
    assert lines[at + 1] == "        12.0 MiB  activations, a.b, 3 of 4.0"
    assert lines[at + 2] == "         1.0 MiB  parameters, made before the step"
    assert lines[at + check.LARGEST + 1 :] == ["  note: assumed"]


@pytest.mark.parametrize("draws", [True, False])
def test_progress_is_a_line_of_a_terminal_alone(monkeypatch, draws):
    stream = io.StringIO()
    stream.isatty = lambda: draws
    monkeypatch.setattr("sys.stderr", stream)
    progress = check.Progress("train.py")
    progress({"kind": "trial", "text": "is tried with --bf16"})
    progress({"kind": "step", "step": 2, "seconds": 1.4})
    shown = [part for part in stream.getvalue().split("\r\033[K") if part]
    said = ["is read", "is tried with --bf16", "has taken step 2, after 1 s"]
    assert shown == [f"train.py {text}" for text in said] * draws


def test_each_lever_has_a_line_of_what_it_saves():
    before = estimate(1000, 0.1, "does not fit")
    alone = [trial("--bf16", 400, 0.05), trial("--optim sgd", 300, 0.1), trial("--fp8", why="no such card")]
    text = check_levers.text_of(Tryout(before, False, alone, trial("--bf16", 400, 0.05)))
    levers = [line.strip() for line in text.splitlines() if "--" in line]
    assert levers[0].split() == ["-700", "MiB", "+0%", "--optim", "sgd"], "the one that saves most is first"
    assert levers[1].split() == ["-600", "MiB", "-50%", "--bf16"]
    assert levers[2] == "no verdict  --fp8: no such card"
    assert "\nit fits with  --bf16\n" in text and "note:" not in text
    rows = check_levers.plain(Tryout(before, False, alone, None))
    assert rows["together"] is None and rows["alone"][2] == {"words": "--fp8", "refused": "no such card"}
    assert rows["alone"][0]["saved_bytes"] == 600 * MIB


def test_what_nothing_makes_fit_and_what_fits_already_are_said():
    before, fitting = estimate(1000, 0.1, "does not fit"), estimate(10, 0.1)
    tight = trial("--bf16", 900, 0.1, "does not fit")
    text = check_levers.text_of(Tryout(before, False, [tight], tight))
    assert "nothing that was tried fits; with --bf16: does not fit on L4" in text and "--largest-batch" in text
    assert check_levers.text_of(Tryout(fitting, True, [], None)).endswith(
        "nothing that changes no result makes it faster"
    )
    faster = check_levers.text_of(Tryout(fitting, True, [], trial("--bf16", 9, 0.05)))
    assert "it fits as it is, and is faster with  --bf16" in faster


@pytest.mark.parametrize("fits, error, at", [(True, None, "warnings"), (False, Error("step", "x", "y"), "hint")])
def test_what_makes_a_script_fit_is_in_its_record(made, fits, error, at):
    made.error = error
    check_levers.enter(Tryout(estimate(1000, 0.1), fits, [], trial("--bf16", 400, 0.05)), made)
    said = {"warnings": made.warnings, "hint": [error.hint] if error else []}
    text = "It fits as it is, and is faster with --bf16" if fits else "It fits with --bf16"
    assert said[at] == [text] and made.warnings == [text] * fits


@pytest.mark.parametrize("together", [None, trial("--bf16", 400, 0.05, "does not fit"), trial("--fp8", why="no card")])
def test_what_makes_no_script_fit_is_no_warning_of_its_record(made, together):
    check_levers.enter(Tryout(estimate(1000, 0.1), False, [trial("--bf16", 400, 0.05)], together), made)
    assert made.warnings == [] and [each["words"] for each in made.estimate.levers] == ["--bf16"]


# --- the whole command ------------------------------------------------------------------------------------------

TRACEBACK = "loading\nTraceback (most recent call last)\n  File x\nValueError: no\n"


@pytest.mark.parametrize(
    "outcome, lines",
    [
        (
            Outcome(status="failed", output="before\n" + TRACEBACK),
            ["Traceback (most recent call last)", "  File x", "ValueError: no"],
        ),
        (Outcome(status=process.REFUSED, output=TRACEBACK), []),
        (
            Outcome(status="failed", output="\n".join(map(str, range(20))) + "\n\n"),
            [str(each) for each in range(8, 20)],
        ),
        (Outcome(status="failed", output=""), []),
        (Outcome(status="failed", output="out of luck"), ["out of luck"]),
    ],
    ids=range(5),
)
def test_of_a_script_that_failed_the_last_twelve_lines_are_shown(outcome, lines):
    assert check.tail_of(outcome) == "".join(f"  | {line}\n" for line in lines)


def test_the_largest_tensors_are_five_and_stand_at_the_end_without_notes(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    made = f"{tmp_path}{os.sep}train.py:3"
    largest = [{"bytes": 2**40, "part": "activations", "made_by": made, "count": 1} for _ in range(9)]
    found = vars(estimate(1, 0.1)) | {"notes": (), "largest": largest}
    lines = check.text_of(StepEstimate(**found)).splitlines()
    assert lines[-6:] == ["  largest at the peak", *["  1,048,576.0 MiB  activations, train.py:3"] * 5]
    largest[0]["count"] = 2
    assert check.text_of(StepEstimate(**found)).splitlines()[-5].endswith("train.py:3, 2 of 1,048,576.0")


# --- measure ----------------------------------------------------------------------------------------------------

FOUND = {
    "device_name": "a CPU",
    "steps": 8,
    "peak_phase": "step",
    "parameters": 12345,
    "peak_tensor_bytes": 3 * MIB,
    "step_seconds_median": 0.0125,
    "skipped_steps": 0,
    "notes": ["first"],
}


def test_what_was_measured_stands_beside_what_was_predicted():
    done = Measurement(Outcome(notes=["second"]), FOUND, {"tensor_bytes": 4.0 * MIB, "step_seconds": None})
    assert measure.text_of(done, Program("file", "train.py", [])).splitlines() == [
        "train.py on a CPU: 8 optimizer steps",
        "                          predicted    measured",
        "  tensor                   4.00         3.00 MiB",
        "  step                                 12.50 ms",
        "  peak in the optimizer's update of the second step; 12,345 parameters",
        "  note: first",
        "  note: second",
    ]


def test_without_a_prediction_there_is_one_column():
    found = FOUND | {"peak_phase": "backward", "skipped_steps": 2, "notes": []}
    lines = measure.text_of(Measurement(Outcome(), found), Program("file", "train.py", [])).splitlines()
    assert lines[1:3] == ["                          measured", "  tensor                   3.00 MiB"]
    assert lines[-2].startswith("  peak in the backward pass")
    assert lines[-1] == "  note: 2 steps were left out by a gradient scaler."


@pytest.mark.parametrize(
    "words, said",
    [
        ("--steps 1 train.py", "refused: --steps 1: it takes two steps until one is like every later one.\n"),
        ("--steps 2", f"refused: {NO_SCRIPT}\n"),
        ("missing.py", "refused: missing.py: there is no such file"),
    ],
)
def test_what_measure_cannot_use_is_refused(words, said, capsys):
    assert measure.main(words.split()) == 2
    assert capsys.readouterr().err.startswith(said)


# --- fit --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["-h"], ["gpu=l4_24gb", "--help"]])
def test_fit_explains_itself_where_nothing_or_help_is_typed(words, capsys):
    assert fit.main(words) == 0
    assert "python scripts/fit.py model=gpt2_xl gpu=rtx4090_24gb" in capsys.readouterr().out


@pytest.mark.parametrize("seconds, lines", [(0.0, "a\nb\n"), (60.0, "")])
def test_off_a_terminal_the_progress_of_a_search_is_a_line_a_minute(monkeypatch, capsys, seconds, lines):
    monkeypatch.setattr(console, "LINE_SECONDS", seconds)
    with fit.status_line() as show:
        show("a")
        show("b")
    assert capsys.readouterr().out == lines
