"""Runs that would end ok, though something is missing."""

from __future__ import annotations

import pytest

from legroom.cli import brief
from legroom.jobs import failures
from legroom.records import record_file

NO_BATCH = """
from legroom.data import data_loader
data_loader.DistributedBatchSampler.__iter__ = lambda self: iter([])
"""
NAN_IN_EVALUATION = """
from legroom.training import evaluate
original = evaluate.totals
def totals(*arguments):
    loss, *others = original(*arguments)
    return [loss * float("nan"), *others]
evaluate.totals = totals
"""


@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
def test_data_that_ends_before_the_last_step_is_a_failure(train, fault, recipe):
    run = train(f"recipe={recipe}", "train.max_steps=4", fork_server=fault(NO_BATCH), status="failed")
    assert recipe == "trainer" or run.record.error.message == "the data ended after step 0 of 4"


@pytest.mark.parametrize("typed,reason", [([], "has a label"), (["eval.precision=bf16"], "has a label")])
def test_an_evaluation_that_says_nothing_is_a_warning(train, fault, typed, reason):
    run = train(*typed, fork_server=fault(NAN_IN_EVALUATION))
    assert run.record.training.final_loss is not None
    [said] = [text for text in run.record.warnings if "the evaluation says nothing" in text]
    assert reason in said


@pytest.mark.parametrize(
    "signal,advice", [("Killed", "where the memory runs out"), ("Bus error", "data.workers=0 shows its error")]
)
def test_a_loader_that_was_killed_is_told_from_one_that_failed(signal, advice):
    error = RuntimeError(f"DataLoader worker (pid 7) is killed by signal: {signal}. ")
    assert advice in failures.failure_hint(error)


def test_a_run_that_failed_says_what_is_lost(train, fault):
    code = "from legroom.training import evaluate; evaluate.evaluate = lambda *_: 1 / 0"
    run = train("train.max_steps=3", fork_server=fault(code), status="failed")
    left = record_file.read(run.folder)
    assert left.training.steps == 3 and "nothing was saved" in brief.brief(left, run.folder)
