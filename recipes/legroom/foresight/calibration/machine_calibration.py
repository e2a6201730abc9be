"""Measure this machine's GPU or CPU, and write the file that estimates use."""

from __future__ import annotations

import time

from legroom.foresight.calibration import cpu_benchmarks
from legroom.foresight.speed import calibrated
from legroom.machine import host


def run(device: str | None) -> int:
    """Measure and write. device: cpu, gpu, or None for the GPU where there is one. Returns 0."""
    start = time.perf_counter()

    def show(text: str) -> None:
        print(f"{time.perf_counter() - start:5.0f} s  {text}", flush=True)

    if device == "cpu" or not host.gpus():
        rates: calibrated.CpuRates | calibrated.GpuRates = cpu_benchmarks.measure(show)
    else:
        from legroom.foresight.calibration import gpu_benchmarks

        rates = gpu_benchmarks.measure(show)
    path = calibrated.write(rates)
    show(f"{rates.device}: written to {path}")
    return 0
