"""The constants that published steps tell: the fit finds what is there, and the table has what it finds."""

from __future__ import annotations

import held_out
import published_speed
import pytest
import step_fit

from legroom.foresight.speed import efficiencies, roofline
from legroom.foresight.speed.operation_names import MATMUL
from legroom.foresight.speed.operations import Operation, Tally

needs_files = pytest.mark.skipif(not held_out.STEPS.exists(), reason=held_out.MISSING)
# Name in hardware.csv -> chip, device name. That of the GH200 is of another board than the one in conf/gpu/.
RATES = {
    "NVIDIA A100 SXM": ("A100", "NVIDIA A100-SXM4-80GB"),
    "NVIDIA A100 PCIe": ("A100", "NVIDIA A100 80GB PCIe"),
    "NVIDIA H100 SXM": ("H100", ""),
    "NVIDIA B200 SXM": ("B200", ""),
    "NVIDIA B300 SXM": ("B300", ""),
    "AMD MI300X": ("MI300X", ""),
    "AMD MI325X": ("MI325X", ""),
}


def table_values() -> tuple[float, ...]:
    """What efficiencies.yaml has of the constants."""
    return tuple(
        getattr(efficiencies.of_chip((one.chips or ("A10",))[0]), one.key)[one.dtypes[0]] for one in step_fit.CONSTANTS
    )


def test_the_fit_finds_the_value_that_made_the_steps():
    gpu, tally = published_speed.gpu_of("Tesla V100-PCIE-32GB"), Tally()
    tally.put(Operation("mm", MATMUL, "fp32", 2 * 4096**3, 3 * 4 * 4096**2, 1, (1, 4096, 4096, 4096)), "forward", 100)
    values = tuple(0.8 if one.key == "sustained" else value for one, value in zip(step_fit.CONSTANTS, table_values()))
    reached = step_fit.with_values(gpu, values)
    seconds = roofline.predict(tally, gpu, "fp32", reached=reached).step_seconds
    found = step_fit.fit([step_fit.Step(gpu, tally, "fp32", seconds, False)])
    assert found[[one.name for one in step_fit.CONSTANTS].index("sustained fp32, V100")] == pytest.approx(0.8, rel=0.01)


@needs_files
def test_the_largest_rates_are_the_published_ones():
    published = step_fit.largest_rates()
    for name, (chip, device) in RATES.items():
        assert efficiencies.of_chip(chip, device).matmul["bf16"] == pytest.approx(published[name], abs=6e-4), name


@pytest.mark.slow
@needs_files
def test_the_table_has_what_the_fit_finds():
    found = step_fit.fit([step for step in step_fit.steps() if not step.held_out])
    for one, value, written in zip(step_fit.CONSTANTS, found, table_values()):
        assert written == pytest.approx(value, rel=0.01), one.name
