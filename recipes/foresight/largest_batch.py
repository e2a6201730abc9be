"""The largest batch per device that fits, by bisection over estimates."""

from __future__ import annotations

import copy

from recipes.config import Config
from recipes.foresight import prediction, simulation
from recipes.records.record import Record


def largest(cfg: Config, folder: str) -> dict[str, int | None]:
    """The largest divisor of batch.effective that fits as batch.per_device, by bisection: memory grows with it.

    cfg: resolved, of an estimate. Returns batch and margin_bytes; and larger and missing_bytes of the next divisor, or
    None where there is none. If margin_bytes is negative, not even a batch of 1 fits.
    """
    effective = cfg.batch.effective
    assert effective is not None, "accumulation=auto without batch.effective is refused"
    divisors = [size for size in range(1, effective + 1) if effective % size == 0]
    margins: dict[int, int] = {}

    def fits(size: int) -> bool:
        tried, outcome = copy.deepcopy(cfg), Record("estimate", [], {}, "", {})
        tried.batch.per_device, tried.accumulation.steps = size, effective // size
        prediction.fill(tried, outcome, simulation.simulate_step(tried, folder, prediction.allocator_bytes(tried)))
        estimate = outcome.estimate
        assert estimate is not None, "on a CPU accumulation=auto is refused"
        margins[size] = estimate.margin_bytes
        return estimate.fits

    low, high = 0, len(divisors)  # the divisors before low fit, those from high on do not
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if fits(divisors[middle]) else (low, middle)
    batch = divisors[max(low - 1, 0)]
    larger = divisors[low] if 0 < low < len(divisors) else None
    return {
        "batch": batch,
        "margin_bytes": margins[batch],
        "larger": larger,
        "missing_bytes": -margins[larger] if larger else None,
    }
