"""estimate.short_run: the whole run by the times of a short one."""

from __future__ import annotations

import json

import pytest
from conftest import compose, small

JOB = ["train.max_steps=12", "save.every_steps=4", "eval.enabled=true", "measure.warmup_steps=2"]


def test_a_short_run_tells_how_long_the_whole_run_takes(train, predicted):
    short = train(*JOB)
    speed = short.record.speed
    more = ["train.max_steps=1200", "save.every_steps=100", f"estimate.short_run={short.folder}"]
    run = predicted(*small(*JOB, *more)).whole_run
    parts = {part["name"]: part for part in run.parts}
    assert run.seconds == pytest.approx(sum(part["seconds"] for part in run.parts)) and run.steps == 1200
    mean = sum(step["seconds"] for step in steps_of(short)[2:]) / 10
    assert parts["steps"]["seconds"] == pytest.approx(1200 * mean, rel=0.01)
    assert parts["loading"]["seconds"] == speed.load_seconds > 0
    assert parts["evaluations"]["seconds"] == short.record.evaluation.seconds
    assert parts["checkpoints"]["count"] == 12
    assert parts["checkpoints"]["seconds"] == pytest.approx(12 * speed.save_seconds / 3)
    assert parts["counting memory"]["seconds"] == speed.ledger_seconds


def steps_of(run):
    return [line for line in map(json.loads, (run.folder / "steps.jsonl").open()) if "loss" in line]


def test_what_the_short_run_had_not_is_named(train, predicted):
    short = train("train.max_steps=6", "eval.enabled=false")
    more = ["train.max_steps=60", "save.every_steps=10", "eval.enabled=true", f"estimate.short_run={short.folder}"]
    outcome = predicted(*small(*more))
    assert any("no checkpoints" in line and "no evaluations" in line for line in outcome.warnings)


def test_another_training_and_no_run_are_refused(train, tmp_path):
    short = train("train.max_steps=6")
    typed = ["recipe=estimate", *small("train.max_steps=60", f"estimate.short_run={short.folder}")]
    assert not compose(*typed).problems
    (line,) = compose(*typed, "batch.per_device=4").problems
    assert "another training" in line and "batch.effective" in line
    (line,) = compose("recipe=estimate", *small(f"estimate.short_run={tmp_path / 'nothing'}")).problems
    assert "no record" in line
    few = train("train.max_steps=2")
    (line,) = compose("recipe=estimate", *small(f"estimate.short_run={few.folder}")).problems
    assert "train.max_steps=" in line
