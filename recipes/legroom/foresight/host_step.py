"""The time of a step whose optimizer runs on the host (parallelism.cpu_offload, parallelism.offload).

The passes and the copies are the GPU's. What the optimizer reads and writes goes through the host's memory, whose
bandwidth all ranks of a machine share; nothing of it overlaps with the GPU, which waits for the weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from legroom.config import Config
from legroom.estimator.speed import operation_names as ops
from legroom.estimator.speed.operations import Tally
from legroom.estimator.speed.roofline import Prediction
from legroom.options import gpu as gpu_options
from legroom.units import GIB

PHASE = "step"
OF_GPU = (ops.HOST_COPY, ops.COLLECTIVE)  # of the phase of the optimizer
# GB/s that torch's operations reach in the memory of a machine: assumed, from a desktop's two channels of DDR5 for all
# ranks to two sockets of twelve.
GB_PER_SECOND, LEAST_GB_PER_SECOND, MOST_GB_PER_SECOND = 100, 25, 400


def predicted(cfg: Config, tally: Tally, predict: Callable[[Tally], Prediction]) -> Prediction:
    """The time of a step with the optimizer on the host.

    tally: of a rank's step. predict: gives the time of a GPU's operations.
    """
    of_gpu, moved_bytes = split(tally)
    step = predict(of_gpu)
    moved_bytes *= gpu_options.ranks_per_machine(cfg)
    usual, low, high = (moved_bytes / (rate * 1e9) for rate in (GB_PER_SECOND, MOST_GB_PER_SECOND, LEAST_GB_PER_SECOND))
    note = (
        f"speed: the optimizer reads and writes {moved_bytes / GIB:,.0f} GiB of a machine's memory in a step, which "
        f"takes {usual:,.2g} s at {GB_PER_SECOND} GB/s (assumed; the interval is of {LEAST_GB_PER_SECOND} to "
        f"{MOST_GB_PER_SECOND})."
    )
    return replace(
        step,
        step_seconds=step.step_seconds + usual,
        low_seconds=step.low_seconds + low,
        high_seconds=step.high_seconds + high,
        host_seconds=max(step.host_seconds, usual),
        notes=[*step.notes, note],
    )


def split(tally: Tally) -> tuple[Tally, int]:
    """(what of a step a GPU does, the bytes that the optimizer reads and writes on the host)."""
    kept: Counter = Counter()
    moved_bytes = 0
    for operation, times in tally.counts.get(PHASE, Counter()).items():
        if operation.kind in OF_GPU:
            kept[operation] = times
        else:
            moved_bytes += operation.bytes * times
    calls = Counter(tally.calls)
    calls[PHASE] = sum(kept.values())
    return replace(tally, counts=tally.counts | {PHASE: kept}, calls=calls), moved_bytes
