"""How `legroom check --try` and `--evaluate` ask for a run of the script with its levers, and when they refuse."""

from __future__ import annotations

import dataclasses

import pytest

from legroom import Refusal
from legroom.foresight.programs import check, try_levers
from legroom.foresight.programs.command import Program
from legroom.foresight.step_estimate import gpu_of


def test_a_script_without_anything_to_change_is_refused():
    first = check.Checked(Program("file", "train.py", []), None, {"": None}, facts={}, gpus={"": gpu_of("l4_24gb")})
    with pytest.raises(Refusal, match="--try: nothing in the script is known to change"):
        try_levers.tried(check.Settings(), first, print)


def test_levers_are_tried_together_in_one_run_of_the_script(monkeypatch):
    """Their arguments behind the script's own, and the values of the same object side by side."""
    asked = []
    monkeypatch.setattr(check, "followed", lambda *given: asked.append(given) or ["found"])
    levers = [
        try_levers.Lever("optimizer", "--optim sgd", argv=("--optim", "sgd")),
        try_levers.Lever("weights", "", changes={"model": {"attention": "sdpa"}}),
        try_levers.Lever("checkpointing", "", changes={"model": {"checkpointing": True}, "arguments": {"bf16": True}}),
    ]
    program, gpus = Program("file", "train.py", ["--lr", "1"]), {"": gpu_of("l4_24gb")}
    assert try_levers.checked(program, gpus, check.Settings(margin=0.5), levers) == "found"
    ((changed, on, settings),) = asked
    assert (changed.argv, changed.target, on, settings.margin) == (
        ["--lr", "1", "--optim", "sgd"],
        "train.py",
        gpus,
        0.5,
    )
    assert settings.changes == {"model": {"attention": "sdpa", "checkpointing": True}, "arguments": {"bf16": True}}


def test_an_evaluation_that_cannot_be_followed_is_refused_with_its_reason(monkeypatch):
    first = check.Checked(Program("file", "train.py", []), None, {}, facts={"arguments": {"bf16": True}}, gpus={})
    fails = dataclasses.replace(first, why="it has no rows.")
    monkeypatch.setattr(check, "followed", lambda *_: [fails])
    with pytest.raises(Refusal, match="--evaluate: it has no rows."):
        try_levers.evaluated(first, check.Settings())
