"""A GPU that was measured here: its file, and its values over those of the table."""

from __future__ import annotations

import pytest

from legroom import config
from legroom.estimator.speed import calibrated, efficiencies
from legroom.machine import gpu_specs


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(calibrated.FOLDER, str(tmp_path))
    return tmp_path


def test_a_gpu_that_was_measured_here_has_its_own_values(folder):
    gpu = config.from_dict(gpu_specs.options()["l4_24gb"], config.Gpu)
    before = efficiencies.of_gpu(gpu)
    calibrated.write(
        calibrated.GpuRates(gpu.device_name, "2.13", "2026-11-22", {"matmul": {"bf16": 0.6}, "kernel_seconds": 2e-6})
    )
    after = efficiencies.of_gpu(gpu)
    assert (before.source, after.source) == ("published", "measured here")
    assert after.matmul == before.matmul | {"bf16": 0.6} and after.kernel_seconds == 2e-6
    assert after.bandwidth == before.bandwidth and after.sustained == before.sustained


def test_products_that_were_measured_here_are_sustained_ones(folder):
    gpu = config.from_dict(gpu_specs.options()["l4_24gb"], config.Gpu)
    assert efficiencies.of_gpu(gpu).sustained["fp32"] != 1
    calibrated.write(calibrated.GpuRates(gpu.device_name, "2.13", "2026-11-22", {"matmul": {"fp32": 0.33}}))
    assert efficiencies.of_gpu(gpu).sustained["fp32"] == 1
