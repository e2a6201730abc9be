"""The time of an estimated step: its interval, what it waits for, the host, and a CPU that was measured here."""

from __future__ import annotations

import tempfile

import pytest
import torch
from conftest import CONF, small

from legroom.cli import brief
from legroom.foresight import prediction, simulation
from legroom.foresight.speed import calibrated
from legroom.machine import host
from legroom.options import compose
from legroom.records.record import Record
from legroom.report.predicted import two_digits

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
    row = brief._time(outcome)
    assert "bound by host" in row and f"({two_digits(speed.step_seconds_low * 1000)} to " in row


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


@pytest.fixture
def calibration(tmp_path, monkeypatch):
    monkeypatch.setenv(calibrated.FOLDER, str(tmp_path))
    yield tmp_path
    calibrated._read.cache_clear()


def test_a_cpu_that_was_not_measured_gets_no_time_and_says_what_to_type(calibration):
    outcome, _ = predicted("recipe=estimate")
    assert outcome.speed.step_seconds_median is None
    assert any("calibrate.py" in line for line in outcome.warnings)


def test_a_cpu_that_was_measured_gets_its_own_times(calibration):
    points = [(1000.0, 1e-6), (1e6, 1e-3)]
    rates = calibrated.CpuRates(
        host.cpu_name(),
        torch.get_num_threads(),
        str(torch.__version__),
        "2026-11-22",
        operations={f"{name} fp32": points for name in ("add", "sum", "clone", "_foreach_mul_")},
        products={"fp32 nn": [(64, 64, 64, 1e9)]},
        batched={"fp32 nn": [(64, 64, 64, 1e9)]},
        call_seconds={"forward": 1e-5, "backward": 5e-6, "step": 1e-5},
    )
    calibrated.write(rates)
    outcome, simulated = predicted("recipe=estimate")
    speed = outcome.speed
    assert speed.step_seconds_low < speed.step_seconds_median < speed.step_seconds_high
    assert speed.samples_per_second == pytest.approx(simulated.samples / speed.step_seconds_median)


def test_memory_that_each_step_touches_anew():
    short, long = (predicted("recipe=estimate", f"batch.per_device={n}")[1].trace.fresh_bytes for n in (1, 8))
    assert long > short == 0  # half a MiB stays in the heap
