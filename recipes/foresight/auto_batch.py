"""accumulation=auto, in a process of its own: the largest batch per device that the estimate says fits."""

from __future__ import annotations

import copy
import json
import os
import sys
import tempfile

from recipes import config
from recipes.foresight import prediction
from recipes.machine import worker_environment
from recipes.ranks import rank_info


def largest(cfg, folder: str) -> dict:
    """The largest divisor of batch.effective that fits as the batch of one pass, by bisection: memory grows with it.

    cfg: resolved, of an estimate. Returns batch and margin_bytes, and larger and missing_bytes of the next divisor
    (None where there is none). With a negative margin not even a batch of 1 fits.
    """
    from recipes.foresight import simulation
    from recipes.records.record import Record

    effective = cfg.batch.effective
    divisors = [size for size in range(1, effective + 1) if effective % size == 0]
    margins: dict[int, int] = {}

    def fits(size: int) -> bool:
        tried, outcome = copy.deepcopy(cfg), Record("estimate", [], {}, "", {})
        tried.batch.per_device, tried.accumulation.steps = size, effective // size
        prediction.fill(tried, outcome, simulation.simulate_step(tried, folder, prediction.allocator_bytes(tried)))
        margins[size] = outcome.estimate.margin_bytes
        return outcome.estimate.fits

    low, high = 0, len(divisors)  # those before low fit, those from high on do not
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


def entry() -> None:
    """Read a configuration from stdin and write what `largest` says of it to stdout, both as JSON."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print where they like
    cfg = config.from_dict(json.load(sys.stdin))
    worker_environment.prepare(cfg, rank_info.RankInfo())
    from recipes.errors import Refusal, UnknownOperation

    try:
        with tempfile.TemporaryDirectory() as folder:
            told = largest(cfg, folder)
    except (Refusal, UnknownOperation) as error:
        told = {"refused": str(error)}
    with answer:
        json.dump(told, answer)
