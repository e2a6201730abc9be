"""Efficiencies are found again from steps that were made with known ones."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
import run_fit
from conftest import ROOT

from legroom import config
from legroom.foresight.speed import efficiencies, roofline
from legroom.foresight.speed.operation_names import ATTENTION, ELEMENTWISE, MATMUL
from legroom.foresight.speed.operations import Operation, Tally
from legroom.machine import gpu_specs

A100 = config.from_dict(gpu_specs.options()["a100_80gb"], config.Gpu)
TRUE = dataclasses.replace(
    efficiencies.of_chip("A100"),
    matmul={"fp32": 0.5, "tf32": 0.6, "fp16": 0.7, "bf16": 0.6},
    bandwidth=efficiencies.of_chip("A100").bandwidth | {ELEMENTWISE: 0.55},
    host_seconds={"forward": 12e-6, "backward": 5e-6, "step": 6e-6},
)


def step(name: str, products: int, adds: int, tiny: int) -> run_fit.MeasuredStep:
    """A step of large products, large additions, and operations that only keep the host busy."""
    tally = Tally()
    tally.put(Operation("mm", MATMUL, "bf16", 2 * 4096**3, 6 * 4096**2, 1, (1, 4096, 4096, 4096)), "forward", products)
    tally.put(Operation("add", ELEMENTWISE, bytes=10**9), "forward", adds)
    tally.put(Operation("add", ELEMENTWISE, bytes=1), "forward", tiny)
    return run_fit.MeasuredStep(name, tally, "bf16", roofline.predict(tally, A100, "bf16", reached=TRUE).step_seconds)


STEPS = [
    step("a", 100, 1, 0),
    step("b", 1, 100, 0),
    step("c", 0, 0, 5000),
    step("d", 50, 20, 10),
    step("e", 20, 50, 10),
]


def test_the_efficiencies_that_made_the_times_are_found():
    start = efficiencies.of_chip("A100")
    found = run_fit.fit(STEPS, A100, start)
    assert found.matmul["bf16"] == pytest.approx(0.6, rel=0.05)
    assert found.bandwidth[ELEMENTWISE] == pytest.approx(0.55, rel=0.05)
    assert found.host_seconds["forward"] == pytest.approx(12e-6, rel=0.05)
    assert max(map(abs, run_fit.errors(STEPS, A100, found))) < 0.02 < max(map(abs, run_fit.errors(STEPS, A100, start)))
    assert (found.source, found.runs) == ("measured", ("a", "b", "c", "d", "e"))


def test_the_part_of_the_peak_that_attention_reaches_is_found():
    tally, start = Tally(), efficiencies.of_chip("A100")
    shape = (16, 2048, 2048, 128)
    tally.put(Operation("flash", ATTENTION, "bf16", 10**13, 10**9, 1, shape), "forward", 100)
    true = dataclasses.replace(start, attention=start.attention | {"flash": start.attention["flash"] / 2})
    seconds = roofline.predict(tally, A100, "bf16", reached=true).step_seconds
    found = run_fit.fit([run_fit.MeasuredStep("attention", tally, "bf16", seconds)], A100, start)
    assert found.attention["flash"] == pytest.approx(true.attention["flash"], rel=0.05)
    assert found.attention["efficient"] == start.attention["efficient"]


def test_a_card_that_clocks_above_its_sheet_is_not_held_to_it():
    card = config.from_dict(gpu_specs.options()["rtx4090_24gb"], config.Gpu)
    tally, start = Tally(), efficiencies.of_chip(card.chip)
    tally.put(Operation("mm", MATMUL, "bf16", 2 * 8192**3, 6 * 8192**2, 1, (1, 8192, 8192, 8192)), "forward", 10)
    assert start.matmul["bf16"] == 1.0
    true = dataclasses.replace(start, matmul=start.matmul | {"bf16": 1.08})
    seconds = roofline.predict(tally, card, "bf16", reached=true).step_seconds
    found = run_fit.fit([run_fit.MeasuredStep("a", tally, "bf16", seconds)], card, start)
    assert found.matmul["bf16"] == pytest.approx(1.08, rel=0.02)


def test_a_value_that_no_step_depends_on_keeps_its_prior():
    start = efficiencies.of_chip("A100")
    found = run_fit.fit(STEPS, A100, start)
    assert found.matmul["fp32"] == start.matmul["fp32"] and found.attention == start.attention
    assert found.host_seconds["backward"] == start.host_seconds["backward"]


def test_no_part_of_a_peak_is_above_one():
    fast = [dataclasses.replace(one, seconds=one.seconds / 10) for one in STEPS]
    found = run_fit.fit(fast, A100, efficiencies.of_chip("A100"))
    assert found.matmul["bf16"] == found.bandwidth[ELEMENTWISE] == 1.0


@pytest.mark.slow
def test_a_folder_without_runs_on_a_gpu_is_refused(tmp_path):
    ended = subprocess.run(
        [sys.executable, str(ROOT / "tests/tools/fit_efficiencies.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 2 and "at least 4" in ended.stderr
