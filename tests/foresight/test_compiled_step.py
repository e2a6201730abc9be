"""compile=true: an estimate of it is of the step as it is written, and says so."""

from __future__ import annotations

import pytest
import torch
from conftest import compose

from legroom.estimator.speed import roofline
from legroom.estimator.speed.operation_names import ELEMENTWISE, MATMUL
from legroom.estimator.speed.operations import Tally
from legroom.foresight import simulation

aten = torch.ops.aten
WORDS = ["gpu=a100_40gb", "model=bert_tiny", "data.samples=16"]


@pytest.fixture
def tally():
    """Of products, element-wise operations and a view in the passes, and one element-wise operation in the step."""
    made, big = Tally(), torch.empty(64, 64, device="meta")
    for func, phase, args in (
        (aten.mm.default, "forward", (big, big)),
        (aten.relu.default, "forward", (big,)),
        (aten.t.default, "forward", (big,)),
        (aten.mm.default, "backward", (big, big)),
        (aten.relu.default, "step", (big,)),
    ):
        made.add(func, args, {}, func(*args), phase, func)
    return made


def test_a_fused_step_has_products_and_optimizer(tally):
    left = tally.without_fusible()
    assert {phase: [one.kind for one in counts] for phase, counts in left.counts.items()} == {
        "forward": [MATMUL],
        "backward": [MATMUL],
        "step": [ELEMENTWISE],
    }
    assert left.calls == {"forward": 1, "backward": 1, "step": 1} and tally.calls["forward"] == 3


def test_an_estimate_is_of_the_step_as_written_and_may_be_shorter(predicted):
    written, found = predicted(*WORDS), predicted(*WORDS, "compile=true", "compile_regions=true")
    assert found.memory == written.memory and found.estimate == written.estimate and found.model == written.model
    assert found.speed.step_seconds_median == written.speed.step_seconds_median
    assert found.speed.step_seconds_low < written.speed.step_seconds_low
    assert found.speed.step_seconds_high == written.speed.step_seconds_high
    assert set(found.warnings) - set(written.warnings) == {simulation.AS_WRITTEN, roofline.FUSED}


def test_the_verdict_of_a_compiled_step_says_what_it_is_of(predicted):
    words = [*WORDS, "launch.memory_limit_gib=0.01"]
    said = [predicted(*words, *more).error.message for more in ([], ["compile=true"])]
    assert ["compile=true" in message for message in said] == [False, True]


def test_with_checkpointing_it_is_not_said_to_take_less(predicted):
    """Measured ones took more, so 'fits' keeps more free."""
    found = predicted(*WORDS, "compile=true", "checkpointing=full")
    assert simulation.AS_WRITTEN + simulation.CHECKPOINTED in found.warnings
    assert found.estimate.kept_bytes == pytest.approx(0.3 * found.memory.peak_reserved_bytes, abs=1)


def test_a_compiled_step_on_a_cpu_has_no_time(tmp_path):
    steps = []
    for more in ([], ["compile=true"]):
        cfg, _, problems = compose("recipe=estimate", "device=cpu", "model=llama_tiny", "data.samples=16", *more)
        assert not problems
        steps.append(simulation.simulate_step(cfg, str(tmp_path)))
    assert steps[0].parts == steps[1].parts and simulation.AS_WRITTEN in steps[1].warnings
