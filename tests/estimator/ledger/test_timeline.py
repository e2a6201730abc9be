"""The timeline of a step: its blocks sum to the ledger's bytes, and each knows what made it."""

from __future__ import annotations

import json

import pytest
import torch
from test_memory_ledger import Deep, Little, ready, step

from legroom.estimator.ledger.kinds import KINDS
from legroom.estimator.ledger.memory_ledger import MemoryLedger
from legroom.estimator.ledger.timeline import timeline
from legroom.levers.optim import apply as in_backward


def measured(model, optimizer, *batches, **options):
    ledger = MemoryLedger(model, optimizer, "cpu", record_origins=True)
    with ledger:
        step(model, optimizer, *batches)
    return ledger, timeline(ledger.log, ledger.origins, **options)


def bytes_at(found, moment):
    """Bytes of each kind at a moment, from the blocks and the rest."""
    sums = [0] * len(found["kinds"])
    blocks = found["blocks"]
    for start, end, size, kind in zip(blocks["start"], blocks["end"], blocks["bytes"], blocks["kind"]):
        if start <= moment < end:
            sums[kind] += size
    known = [i for i, at in enumerate(found["rest"]["at"]) if at <= moment]
    if known:
        sums = [a + b for a, b in zip(sums, found["rest"]["bytes"][known[-1]])]
    return sums


def live_bytes(log):
    """The live bytes before and after each event of the last step; before: with all tensors that were there."""
    now, sums, began = 0, [], False
    for index, (entry, sign) in enumerate(log.events):
        began = began or (index >= log.step_start and not entry.preexisting)
        if began and not sums:
            sums = [now]
        now += sign * entry.bytes
        if began:
            sums.append(now)
    return sums


@pytest.mark.parametrize("most_blocks", [1000, 4, 0])
def test_the_blocks_sum_to_the_ledgers_bytes(most_blocks):
    ledger, found = measured(*ready(), torch.ones(32, 8), torch.ones(32, 8), most_blocks=most_blocks)
    parts, at_peak = ledger.parts(), dict(zip(KINDS, bytes_at(found, found["peak"])))
    assert sum(at_peak.values()) == parts["peak_tensor_bytes"]
    assert at_peak["activations"] == parts["activations_bytes"] and at_peak["optimizer"] == parts["optimizer_bytes"]
    assert len(found["blocks"]["start"]) <= max(most_blocks, 0) or most_blocks == 1000
    at_beginning = [kind for kind, size in zip(KINDS, bytes_at(found, 0)) if size]
    at_beginning = sorted(at_beginning, key=["parameters", "optimizer", "other"].index)
    sums = [sum(bytes_at(found, moment)) for moment in range(found["moments"])]
    assert sums == live_bytes(ledger.log)[: len(sums)]  # what is freed later is no part of the step
    assert at_beginning == ["parameters", "optimizer", "other"]  # the inputs: all were there before the step
    assert json.loads(json.dumps(found))["names"] == found["names"]


def test_a_long_step_keeps_its_peak_in_the_sums():
    """More moments than the sums have points: between them the most of every few moments is kept."""
    ledger, found = measured(*ready(), *[torch.ones(32, 8)] * 150, most_blocks=3)
    assert found["moments"] > 2000 and len(found["rest"]["at"]) < 1100
    assert sum(bytes_at(found, found["peak"])) == ledger.parts()["peak_tensor_bytes"] == max(live_bytes(ledger.log))


def test_every_block_knows_what_made_it():
    """Also in the backward pass: the module is the one whose forward pass made the inputs."""
    _, found = measured(*ready(Little()), torch.ones(32, 8))
    blocks = [
        (found["names"][name], KINDS[kind], size)
        for name, kind, size in zip(*(found["blocks"][key] for key in ("name", "kind", "bytes")))
    ]
    assert ("first.weight", "parameters", 512) in blocks and ("first.weight exp_avg", "optimizer", 512) in blocks
    assert ("second.weight gradient", "gradients", 256) in blocks
    assert ("first mm", "other", 2048) in blocks and ("relu", "activations", 2048) in blocks
    assert ("second mm", "other", 2048) in blocks  # the gradient of the second layer's input, in the backward pass


def test_the_record_is_the_same_with_and_without_origins():
    x = torch.ones(32, 8)
    for recompute in (False, True):
        plain = MemoryLedger(*ready(Deep(recompute)), "cpu")
        with plain:
            step(plain.model, plain.optimizer, x)
        assert measured(*ready(Deep(recompute)), x)[0].parts() == plain.parts()


def test_steps_inside_the_backward_pass_belong_to_it():
    """optim.in_backward: a phase for each weight would hide the pass in a picture."""
    model = Little()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    in_backward.StepsInBackward(optimizer)
    step(model, optimizer, torch.ones(32, 8))
    _, found = measured(model, optimizer, torch.ones(32, 8))
    assert [name for _, name in found["phases"]] == ["forward", "backward", "step"]
    assert found["phases"] == sorted(found["phases"]) and found["phases"][0][0] == 0
