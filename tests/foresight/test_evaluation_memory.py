"""What an evaluation needs: it decides whether a job fits where its batches need more than a training step."""

from __future__ import annotations

import json
import tempfile
import weakref
from types import SimpleNamespace

import pytest
import torch
from conftest import compose

from legroom import units
from legroom.cli import brief
from legroom.estimator.memory.allocator import Demand
from legroom.foresight import advice, evaluation_memory, largest_batch
from legroom.levers.accumulation import rules as accumulation
from legroom.machine import host
from legroom.records.record import DOES_NOT_FIT, FITS, TIGHT
from legroom.report import predicted as predicted_reports
from legroom.report.page import run_page
from legroom.training import evaluate
from legroom.units import GIB, MIB

WORDS = ("gpu=a100_40gb", "model=gpt2_tiny", "data.samples=16", "data.eval_samples=64", "data.seq_len=64")
LARGE = "eval.batch=32"  # two batches


@pytest.fixture(scope="module")
def words():
    return [*WORDS, "batch.per_device=1"]


def test_a_small_evaluation_changes_nothing(predicted, words, tmp_path):
    without, small = predicted(*words, "eval.enabled=false"), predicted(*words, "eval.batch=1")
    assert without.estimate.evaluation_reserved_bytes is None and small.estimate.evaluation_reserved_bytes
    small.memory.phases = [phase for phase in small.memory.phases if phase["phase"] != "evaluation"]
    assert small.memory == without.memory and small.estimate.margin_bytes == without.estimate.margin_bytes
    assert small.estimate.evaluation_reserved_bytes == small.memory.peak_reserved_bytes
    assert "reserved, evaluation" not in brief.brief(small, tmp_path)


def test_a_large_one_decides_the_verdict(predicted, words, tmp_path):
    free = predicted(*words, LARGE)
    needed, trained = free.estimate.evaluation_reserved_bytes, free.memory.peak_reserved_bytes
    assert free.estimate.verdict == FITS and needed > 1.3 * trained
    assert "CUDA reserved, evaluation" in brief.brief(free, tmp_path)
    # Less than the step has cached and the evaluation needs: cached memory is given back, or it does not fit.
    little = predicted(*words, LARGE, f"launch.memory_limit_gib={trained * 1.1 / GIB}")
    assert (little.estimate.verdict, little.status, little.error.phase) == (DOES_NOT_FIT, "oom", "eval")
    assert "eval.batch=32" in little.error.message and units.size(-little.estimate.margin_bytes) in little.error.message
    assert little.memory.peak_reserved_bytes == trained
    assert predicted(*words, "eval.batch=1", f"launch.memory_limit_gib={trained * 1.1 / GIB}").estimate.fits


@pytest.mark.parametrize(
    "batch, evaluated, share, decided_by, places",
    [
        (1, 32, 1.1, "evaluation", ["evaluation"]),
        (1, 1, 0.9, "step", ["training step"]),
        (8, 64, 0.9, "step", ["training step", "evaluation"]),
        (1, 32, 100, "step", ["training step", "evaluation"]),  # fits, and the evaluation leaves less
        (1, 1, 100, "step", []),
    ],
    ids=str,
)
def test_screen_page_and_record_agree_on_what_lacks_room(
    predicted, words, tmp_path, batch, evaluated, share, decided_by, places
):
    asked = [*words[:-1], f"batch.per_device={batch}", f"eval.batch={evaluated}"]
    needed = predicted(*asked, "eval.enabled=false").memory.peak_reserved_bytes
    outcome = predicted(*asked, f"launch.memory_limit_gib={needed * share / GIB}")
    estimate = outcome.estimate
    assert estimate.decided_by == decided_by
    left = units.size(abs(estimate.margin_bytes))
    said = f"{left} {'are missing' if estimate.margin_bytes < 0 else 'stay free'}"
    screen = " ".join(brief.answer(outcome).split())
    page = run_page.data(outcome, tmp_path)["verdict"]
    assert said in page["margin"] and page["margin"] in screen and page["needed"] in screen
    assert [place for place in ("training step", "evaluation") if place in page["margin"]] == places
    if outcome.error is not None:
        assert left in outcome.error.message
    decisive = outcome.memory.device_used_bytes if decided_by == "step" else predicted_reports.evaluation_bytes(outcome)
    assert units.size(decisive) in page["needed"]
    assert abs((estimate.limit_bytes or estimate.capacity_bytes) - estimate.margin_bytes - decisive) < 0.02 * decisive


@pytest.mark.slow
def test_advice_begins_with_an_evaluation_without_room(predicted, words):
    asked = [*words[:-1], "batch.per_device=8", "eval.batch=64"]
    free = predicted(*asked)
    limit = f"launch.memory_limit_gib={free.memory.peak_reserved_bytes * 0.8 / GIB}"
    outcome = predicted(*asked, limit)
    assert outcome.estimate.decided_by == "step" and outcome.estimate.evaluation_margin_bytes < 0
    outcome.overrides = [*asked, limit]
    hint = advice.hint(compose("recipe=estimate", *asked, limit).cfg, outcome)
    assert hint.startswith("Tried: eval.batch="), hint
    changes = [word for word in hint.partition(" (")[0].split()[1:] if "=" in word]
    kept = [word for word in asked if word.partition("=")[0] not in {change.partition("=")[0] for change in changes}]
    assert predicted(*kept, *changes, limit).estimate.fits


def test_out_of_memory_in_an_evaluation_names_a_smaller_one(words):
    hint = advice.untried(compose("device=cpu", "eval.batch=8", "checkpointing=none").cfg, "eval")
    assert hint.startswith("Try, the cheapest first: eval.batch=4, ") and "checkpointing" not in hint


def test_between_the_two_it_is_tight_and_the_warning_says_why(predicted, words):
    free = predicted(*words, LARGE)
    needed = free.estimate.evaluation_reserved_bytes
    kept = free.estimate.kept_bytes
    found = [
        predicted(*words, LARGE, f"launch.memory_limit_gib={(needed - step * MIB) / GIB}") for step in range(0, 24, 2)
    ]
    verdicts = [outcome.estimate.verdict for outcome in found]
    assert sorted(verdicts, key=[FITS, TIGHT, DOES_NOT_FIT].index) == verdicts and TIGHT in verdicts
    tight = found[verdicts.index(TIGHT)]
    assert 0 <= tight.estimate.margin_bytes < kept and tight.status == "ok" and not tight.estimate.fits
    assert any(line.startswith("tight: the evaluation (eval.batch=32)") for line in tight.warnings)
    tight.overrides = [*words, LARGE, f"launch.memory_limit_gib={tight.config['launch']['memory_limit_gib']}"]
    cfg = compose("recipe=estimate", *tight.overrides).cfg
    assert advice.hint(cfg, tight).startswith("Tried: eval.batch=16 (")


def test_fitting_without_the_margin_is_tight(predicted, words):
    outcome, cfg = predicted(*words), compose("recipe=estimate", *words).cfg
    kept, capacity = outcome.estimate.kept_bytes, 100 * MIB

    def demand_within(bytes_there: int) -> Demand:
        missing = 0 if bytes_there == capacity else kept + MIB  # blocks that are given back there and not here
        return Demand(90 * MIB, 90 * MIB, missing, 0, bytes_there)

    evaluation_memory.judge(cfg, outcome, capacity, demand_within)
    assert (outcome.estimate.verdict, outcome.estimate.margin_bytes, outcome.status) == (TIGHT, 0, "ok")


def test_the_margin_is_kept_of_what_the_allocator_may_take(predicted, words):
    """As with per_process_memory_fraction in PYTORCH_ALLOC_CONF."""
    outcome, asked = predicted(*words), []
    kept = outcome.estimate.kept_bytes

    def demand_within(bytes_there: int) -> Demand:
        asked.append(bytes_there)
        return Demand(MIB, MIB, 0, 0, min(bytes_there, GIB))

    evaluation_memory.judge(compose("recipe=estimate", *words).cfg, outcome, 2 * GIB, demand_within)
    assert asked == [2 * GIB, GIB - kept]


def test_the_hint_is_a_smaller_evaluation_that_fits(predicted, words):
    limit = f"launch.memory_limit_gib={predicted(*words, 'eval.batch=1').memory.peak_reserved_bytes * 1.1 / GIB}"
    asked = [*words, LARGE, limit]
    outcome = predicted(*asked)
    hint = advice.hint(compose("recipe=estimate", *asked).cfg, outcome)
    assert hint.startswith("Tried: eval.batch=") and "iB stay free" in hint
    (change,) = (word for word in hint.split() if word.startswith("eval.batch="))
    assert predicted(*words, change, limit).estimate.fits


def test_accumulation_auto_names_an_evaluation_without_room(predicted, words, monkeypatch):
    trained = predicted(*words, "eval.batch=1").memory.peak_reserved_bytes
    auto = [*words[:-1], "recipe=estimate", "accumulation=auto", "batch.effective=2", LARGE]
    monkeypatch.setattr(accumulation, "_ask", lambda asked: json.dumps(_largest(asked)))
    (problem,) = compose(*auto, f"launch.memory_limit_gib={trained * 1.1 / GIB}").problems
    assert problem.startswith(
        "accumulation=auto: with any batch it would not fit: the evaluation (eval.batch=32) needs"
    )
    assert evaluation_memory.LESS in problem


def _largest(asked: str) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        return largest_batch.largest(host.configuration(json.loads(asked)), folder)


def test_what_a_batch_has_made_is_gone_as_the_next_is_evaluated():
    """Else the logits of two batches would be there at a time."""
    earlier = []

    def forward(**batch):
        assert not any(reference() is not None for reference in earlier)
        output = SimpleNamespace(loss=torch.ones(()), logits=torch.zeros(2, 2))
        earlier.append(weakref.ref(output.logits))
        return output

    class Batch(dict):
        rows = 2

    loader = [Batch(labels=torch.zeros(2, dtype=torch.long)) for _ in range(3)]
    loss_sum, count, correct, samples = evaluate.totals(forward, loader, "classification", torch.device("cpu"))
    assert len(earlier) == 3 and (float(loss_sum), int(count), int(correct), samples) == (6, 6, 6, 6)


@pytest.mark.parametrize(
    "more",
    [
        ("parallelism=ddp", "parallelism.num_processes=2"),
        ("parallelism=fsdp", "parallelism.num_processes=2"),
        ("eval.precision=bf16",),
        ("adapter=lora", "optim=schedule_free", "train.schedule=constant"),
        ("model=bert_tiny", "precision=fp16"),
    ],
)
def test_in_other_modes_too(predicted, words, more):
    kept = [word for word in words if word.partition("=")[0] not in {text.partition("=")[0] for text in more}]
    outcome = predicted(*kept, LARGE, *more)
    assert outcome.status == "ok" and outcome.estimate.evaluation_reserved_bytes >= outcome.memory.peak_reserved_bytes
