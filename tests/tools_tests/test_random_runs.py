"""tests/tools/random_runs.py: a few of its trainings, and that it would notice what does not hold."""

from __future__ import annotations

import copy
import random

import pytest
import random_runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory, fork_server):
    return random_runs.Runs(tmp_path_factory.mktemp("runs"), fork_server)


@pytest.mark.slow
def test_what_holds_for_a_configuration_is_seen_to_hold(runs):
    words = ("model=llama_tiny", "data=source", "optim=adafactor", "checkpointing=full", "batch.effective=4")
    assert runs.check(0, words) == random_runs.Outcome(words, "ok")  # with a training that goes on
    refused = runs.check(1, ("optim=adamw", "optim.momentum=0.5"))
    assert refused.kind == "refused" and "optim.momentum" in refused.why


def test_what_does_not_hold_is_said(train):
    one = train("recipe=trainer").record
    other = copy.deepcopy(one)
    assert random_runs.differences(one, other) == []
    other.training.losses[1] += 1e-6
    other.memory.peak_tensor_bytes += 10**6
    said = "; ".join(random_runs.differences(one, other))
    assert "losses are" in said and "parts add up to" in said and "the peaks are" in said


def test_the_same_seed_draws_the_same_lines(tmp_path):
    options = {menu: ["a", "b"] for menu in random_runs.MENUS}
    data = random_runs.write_data(tmp_path)
    drawn = [[random_runs.draw(chance, options, data) for _ in range(50)] for chance in map(random.Random, (3, 3, 4))]
    assert drawn[0] == drawn[1] != drawn[2]
    assert {word.partition("=")[0] for line in drawn[0] for word in line} >= {*random_runs.MENUS, "model", "data"}
