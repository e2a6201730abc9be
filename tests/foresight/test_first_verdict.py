"""The first verdict of an estimate, and that it is never silent for long."""

from __future__ import annotations

import json
import random
import time

import pytest
from conftest import compose

from legroom import units
from legroom.cli import console
from legroom.foresight import estimate
from legroom.machine import host
from legroom.records.messages import PhaseStarted, Progress, Shown
from legroom.records.record import verdict_of

TINY = ["recipe=estimate", "gpu=a100_40gb", "model=bert_tiny", "batch.per_device=4", "data.seq_len=64"]


@pytest.fixture
def said(tmp_path):
    """said(*overrides) -> (the record of an estimate of uneven rows, the messages that it sent)."""
    chance = random.Random(1)
    rows = [{"text": "w" * chance.randint(5, 60), "label": number % 2} for number in range(64)]
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def said(*overrides):
        typed = [*TINY, "data=text", f"data.path={file}", "data.task=classification", *overrides]
        _, outcome, problems = compose(*typed)
        assert not problems, problems
        messages = []
        estimate.run(host.configuration(outcome.config), outcome, tmp_path, Progress(messages.append, outcome))
        return outcome, messages

    return said


@pytest.mark.parametrize("steps", [1, 4])
def test_the_longest_rows_have_a_verdict_before_the_rest_is_simulated(said, steps):
    outcome, messages = said(f"accumulation.steps={steps}")
    first = next(index for index, message in enumerate(messages) if isinstance(message, Shown))
    text = messages[first].text
    assert text.startswith("first verdict") and verdict_of(outcome.estimate) in text
    assert units.size(outcome.estimate.capacity_bytes) in text
    rest = [message.name for message in messages[first:] if isinstance(message, PhaseStarted)]
    assert any("evaluation" in name for name in rest) and any("other lengths" in name for name in rest)
    if steps == 1:  # the same requests to the allocator
        assert units.size(outcome.estimate.margin_bytes) in text and " ms" in text


def test_an_estimate_says_what_it_does_where_there_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr(console, "QUIET_SECONDS", 0.05)
    with console.Console(beats=True) as screen:
        screen.on_message(PhaseStarted("load", "estimating: the evaluation"))
        time.sleep(0.3)
    lines = capsys.readouterr().err.splitlines()
    assert lines and lines[-1].startswith("estimating: the evaluation (")
    with console.Console() as screen:  # a training has lines of its own
        time.sleep(0.2)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("optim", ["adamw", "sgd"])
def test_the_first_look_at_an_accumulation_needs_what_the_whole_step_does(said, optim):
    """It runs one micro-batch beside gradients and states, in place of all of them."""
    outcome, messages = said("accumulation.steps=4", f"optim={optim}", "model=bert_base")
    text = next(message.text for message in messages if isinstance(message, Shown))
    free = float(text.partition(": ")[2].partition("GiB stay free")[0].rpartition(",")[2])
    exact = (outcome.estimate.capacity_bytes - outcome.memory.device_used_bytes) / units.GIB
    assert free == pytest.approx(exact, abs=0.1)
