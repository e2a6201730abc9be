"""tests/tools/random_runs.py: a few of its trainings, and that it would notice what does not hold."""

from __future__ import annotations

import copy
import dataclasses
import random

import other_ways
import pytest
import random_runs
import torch
from test_data import built


@pytest.fixture(scope="module")
def runs(tmp_path_factory, fork_server):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEGROOM_MENUS", "{}")
        yield random_runs.Runs(tmp_path_factory.mktemp("runs"), fork_server)


def typed(*overrides):
    return random_runs.Drawn(other_ways.TwoWays(overrides, overrides))


@pytest.mark.slow
def test_what_holds_for_a_configuration_is_seen_to_hold(runs):
    drawn = typed("model=llama_tiny", "data=source", "optim=adafactor", "checkpointing=full", "batch.effective=4")
    assert runs.check(0, drawn) == random_runs.Outcome(drawn, "ok")  # with a training that goes on
    refused = runs.check(1, typed("optim=adamw", "optim.momentum=0.5"))
    assert refused.kind == "refused" and "optim.momentum" in refused.why


@pytest.mark.slow
@pytest.mark.parametrize("check", ["signalled", "diverging"])
def test_trainings_that_end_otherwise(runs, check):
    drawn = dataclasses.replace(typed("model=gpt2_tiny", "optim=my_sgd"), check=check)
    outcome = runs.check(1, drawn)
    assert outcome.kind == "ok", outcome.why


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
    ways = other_ways.Ways(tmp_path)
    drawn = [[random_runs.draw(chance, options, ways) for _ in range(50)] for chance in map(random.Random, (3, 3, 4))]
    assert drawn[0] == drawn[1] != drawn[2]
    keys = {text.partition("=")[0] for each in drawn[0] for text in each.ways.one}
    assert keys >= {*random_runs.MENUS, "model", "data"}
    assert {each.check for each in drawn[0]} == {"both", "signalled", "diverging"}


def test_the_two_ways_to_type_data_have_the_same_rows(tmp_path):
    """Bad rows that are left out, and a variable of the template on the command line, in the rows or in itself."""
    ways, chance, seen = other_ways.Ways(tmp_path), random.Random(1), set()
    while len(seen) < 6:
        source = chance.choice(("text", "chat"))
        drawn = ways.draw_data(chance, source)
        if drawn.one == drawn.other or drawn in seen:
            continue
        seen.add(drawn)
        sizes = ["model=llama_tiny", f"data={source}", "data.seq_len=64", "data.samples=24"]
        one, other = (built(*sizes, *way, vocab=300) for way in (drawn.one, drawn.other))
        assert values(one) == values(other) != [], drawn


def values(data):
    return [{key: torch.as_tensor(value).tolist() for key, value in row.items()} for row in data.train]
