"""Measure this machine's GPU, and write the file that estimates use."""

from __future__ import annotations

import time

from legroom.foresight.calibration import gpu_benchmarks
from legroom.foresight.speed import calibrated


def run() -> int:
    """Measure and write. Returns 0."""
    start = time.perf_counter()

    def show(text: str) -> None:
        print(f"{time.perf_counter() - start:5.0f} s  {text}", flush=True)

    rates = gpu_benchmarks.measure(show)
    path = calibrated.write(rates)
    show(f"{rates.device}: written to {path}")
    return 0
