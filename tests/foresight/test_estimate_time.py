"""The time of an estimated step: its interval, what it waits for, and the host."""

from __future__ import annotations

import tempfile

import pytest
from conftest import CONF, small

from legroom.foresight import prediction, simulation
from legroom.options import compose
from legroom.records.record import Record

V100 = ["recipe=estimate", "gpu=v100_16gb", "device=auto"]


def predicted(*overrides: str) -> tuple[Record, simulation.SimulatedStep]:
    cfg, outcome = compose.compose_valid(CONF, *small(*overrides))
    with tempfile.TemporaryDirectory() as folder:
        simulated = simulation.simulate_step(cfg, folder, prediction.allocator_bytes(cfg))
    prediction.fill(cfg, outcome, simulated)
    return outcome, simulated


def test_a_record_has_an_interval_and_what_the_step_waits_for():
    outcome, _ = predicted(*V100)
    speed = outcome.speed
    assert speed.step_seconds_low < speed.step_seconds_median < speed.step_seconds_high
    assert speed.bound_by == "host"


def test_a_slower_host_makes_a_host_bound_step_slower():
    usual, slow = (predicted(*V100, *more)[0].speed.step_seconds_median for more in ([], ["gpu.host_factor=3"]))
    assert slow == pytest.approx(3 * usual)


def test_autocast_costs_the_host_more():
    plain, cast = (predicted(*V100, f"precision={name}")[0].speed.step_seconds_median for name in ("fp32", "fp16"))
    assert cast > 1.2 * plain


def test_checkpointing_runs_python_in_the_backward_pass():
    plain, again = (
        predicted(*V100, "model.layers=2", f"checkpointing={name}")[1].tally.calls for name in ("none", "full")
    )
    assert again["forward"] > 1.5 * plain["forward"]
    assert again["backward"] < 1.2 * plain["backward"]


def test_a_step_on_a_cpu_gets_no_time_and_says_what_to_type():
    outcome, _ = predicted("recipe=estimate")
    assert outcome.speed.step_seconds_median is None
    assert prediction.NO_CPU_TIME in outcome.warnings


@pytest.mark.parametrize(
    "more, is_longer",
    [
        ("parallelism=fsdp parallelism.experts=2", True),
        ("parallelism=fsdp_tp parallelism.tensor_size=2 parallelism.split=experts", True),
        ("parallelism=ddp parallelism.context=2", False),  # which sends the heads of rows, and not tokens to experts
        ("parallelism=ddp", False),
    ],
)
def test_steps_whose_ranks_share_out_experts_may_take_twice_the_time(more, is_longer):
    words = [*V100, "gpu=a100_80gb", "model=mixtral_tiny", "parallelism.num_processes=2"]
    speed = (outcome := predicted(*words, *more.split())[0]).speed
    assert (speed.step_seconds_high >= 2 * speed.step_seconds_median) == is_longer
    assert any("share out experts" in line for line in outcome.warnings) == is_longer
