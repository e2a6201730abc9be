"""The largest batch per device that fits, by bisection over estimates."""

from __future__ import annotations

import copy

from legroom.config import Config
from legroom.foresight import prediction, simulation
from legroom.records.record import Estimate, Record


def largest(cfg: Config, folder: str) -> dict[str, int | str | None]:
    """The largest divisor of batch.effective that fits as batch.per_device, by bisection: memory grows with it.

    cfg: resolved, of an estimate. Returns batch, fits, margin_bytes and kept_bytes, and larger, larger_margin_bytes and
    larger_kept_bytes of the next divisor, or None where there is none. If fits is false, not even a batch of 1 does;
    evaluation then says so where it is the evaluation that does not fit, and else it is None.
    """
    effective = cfg.batch.effective
    assert effective is not None, "accumulation=auto without batch.effective is refused"
    divisors = [size for size in range(1, effective + 1) if effective % size == 0]
    tried_sizes: dict[int, Estimate] = {}
    too_large_evaluations: dict[int, str] = {}  # size -> what is said of it

    def fits(size: int) -> bool:
        tried, outcome = copy.deepcopy(cfg), Record("estimate", [], {}, "", {})
        tried.batch.per_device, tried.accumulation.steps = size, effective // size
        capacity = prediction.allocator_bytes(tried)
        prediction.fill(tried, outcome, simulation.simulate_step(tried, folder, capacity, draw_lengths=True))
        estimate = outcome.estimate
        assert estimate is not None, "on a CPU accumulation=auto is refused"
        tried_sizes[size] = estimate
        if outcome.error is not None and outcome.error.phase == "eval":
            too_large_evaluations[size] = f"{outcome.error.message} {outcome.error.hint}"
        return estimate.fits

    low, high = 0, len(divisors)  # the divisors before low fit, those from high on do not
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if fits(divisors[middle]) else (low, middle)
    batch = divisors[max(low - 1, 0)]
    larger = divisors[low] if 0 < low < len(divisors) else None
    chosen, next_one = tried_sizes[batch], tried_sizes.get(larger or 0)
    return {
        "batch": batch,
        "fits": chosen.fits,
        "margin_bytes": chosen.margin_bytes,
        "kept_bytes": chosen.kept_bytes,
        "evaluation": too_large_evaluations.get(batch),
        "larger": larger,
        "larger_margin_bytes": next_one.margin_bytes if next_one else None,
        "larger_kept_bytes": next_one.kept_bytes if next_one else None,
    }
