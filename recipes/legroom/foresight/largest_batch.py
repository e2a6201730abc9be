"""The largest batch per device that fits, by bisection over estimates."""

import bisect
import copy
from typing import Any

from legroom import invocation, units
from legroom.config import Config
from legroom.foresight import prediction, simulation
from legroom.records.record import STEP, Estimate, Record


def largest(cfg: Config, folder: str) -> dict[str, Any]:
    """The largest divisor of batch.effective that fits as batch.per_device, by bisection: memory grows with it.

    cfg: resolved, of an estimate. Returns batch, and the reason in words; or refused, why not even a batch of 1 fits.
    """
    effective = cfg.batch.effective
    assert effective is not None, "accumulation=auto without batch.effective is refused"
    divisors = [size for size in range(1, effective + 1) if effective % size == 0]
    outcomes: dict[int, tuple[Record, Estimate]] = {}

    def fits(size: int) -> bool:
        outcome = Record("estimate", [], {}, "", {})
        tried = copy.deepcopy(cfg)
        tried.batch.per_device = size
        tried.accumulation.steps = effective // size
        capacity = prediction.allocator_bytes(tried)
        prediction.fill(tried, outcome, simulation.simulate_step(tried, folder, capacity, draw_lengths=True))
        assert outcome.estimate is not None, "on a CPU accumulation=auto is refused"
        outcomes[size] = outcome, outcome.estimate
        return outcome.estimate.fits

    low = bisect.bisect_left(divisors, True, key=lambda size: not fits(size))  # the number of divisors that fit
    if low == 0:
        return {"refused": _why_none(cfg, *outcomes[1])}
    batch = divisors[low - 1]
    _, estimate = outcomes[batch]
    reason = (
        f"batch.per_device={batch} in {units.plural(effective // batch, 'step')}, the largest that is predicted to fit "
        f"{cfg.gpu.device_name}. {units.size(estimate.margin_bytes)} stay free"
    )
    if low < len(divisors):
        larger = divisors[low]
        reason += f", and {_why_not(larger, outcomes[larger][1])}"
    return {"batch": batch, "reason": f"{reason}."}


def _why_none(cfg: Config, outcome: Record, estimate: Estimate) -> str:
    """Why not even a batch of 1 fits."""
    if outcome.error is not None and estimate.decided_by not in (None, STEP):
        return f"with any batch {outcome.error.message} {outcome.error.hint}"
    left = estimate.margin_bytes
    if left < 0:
        why = f"{units.size(-left)} missing"
    else:
        kept = units.size(estimate.kept_bytes or 0)
        why = f"{units.size(left)} stay free, and {kept} are to (estimate.margin={cfg.estimate.margin})"
    return (
        f"not even batch.per_device=1 fits {cfg.gpu.device_name}; {why}. "
        f"{invocation.command('fit')} searches for what fits."
    )


def _why_not(batch: int, estimate: Estimate) -> str:
    """Why a larger batch does not fit."""
    left = estimate.margin_bytes
    if left < 0:
        return f"{batch} would miss by {units.size(-left)}"
    return f"{batch} would leave {units.size(left)}, where {units.size(estimate.kept_bytes or 0)} are kept free"
