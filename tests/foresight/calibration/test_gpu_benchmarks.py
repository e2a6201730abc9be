"""What scripts/calibrate.py makes of the seconds that it measures on a GPU, without one."""

from __future__ import annotations

import dataclasses

import pytest

from legroom import config
from legroom.cli import calibrate
from legroom.errors import Refusal
from legroom.estimator.speed import calibrated, efficiencies, roofline
from legroom.estimator.speed.operation_names import COPY, ELEMENTWISE, MATMUL, OPTIMIZER
from legroom.estimator.speed.operations import Operation
from legroom.foresight.calibration import gpu_benchmarks
from legroom.machine import gpu_specs, host


@pytest.mark.parametrize("name,dtype,size", [("bf16", "bf16", 2), ("tf32", "fp32", 4), ("fp32", "fp32", 4)])
def test_a_product_that_was_measured_is_predicted_to_take_what_it_took(monkeypatch, tmp_path, name, dtype, size):
    monkeypatch.setenv(calibrated.FOLDER, str(tmp_path))
    gpu = config.from_dict(gpu_specs.options()["l4_24gb"], config.Gpu)
    side = gpu_benchmarks.LARGE
    product = Operation("mm", MATMUL, dtype, 2 * side**3, 3 * size * side**2, 1, (1, side, side, side))
    table = efficiencies.of_gpu(gpu)
    true = dataclasses.replace(table, matmul={name: 0.4}, sustained={name: 1.0})
    seconds = roofline.device_seconds(product, gpu, name, true)
    found = gpu_benchmarks.matmul_of(seconds, name, gpu)
    assert found == pytest.approx(0.4, rel=1e-3)
    calibrated.write(calibrated.GpuRates(gpu.device_name, "2.13", "2026-11-22", {"matmul": {name: found}}))
    predicted = roofline.device_seconds(product, gpu, name, efficiencies.of_gpu(gpu))
    assert predicted == pytest.approx(seconds, rel=1e-3)


@pytest.mark.parametrize("kind", [ELEMENTWISE, COPY, OPTIMIZER])
@pytest.mark.parametrize("option", ["a100_80gb", "b200_180gb"])
def test_a_measured_bandwidth_gives_the_seconds_it_was_measured_from(kind, option):
    """Beside the work on the elements, which takes a part of the time of small ones."""
    gpu = config.from_dict(gpu_specs.options()[option], config.Gpu)
    operation, table = Operation(kind, kind, bytes=8 * 2**28, elements=2**28), efficiencies.of_chip(gpu.chip)
    reached = dataclasses.replace(table, bandwidth=table.bandwidth | {kind: 0.71})
    seconds = roofline.traffic_seconds(operation, gpu, reached)
    assert gpu_benchmarks.bandwidth_of(seconds, operation, gpu) == pytest.approx(0.71, rel=1e-6)


def test_without_a_gpu_there_is_nothing_to_calibrate(monkeypatch):
    monkeypatch.setattr(host, "gpus", list)
    with pytest.raises(Refusal, match="no GPU that torch could use"):
        calibrate.main([])
