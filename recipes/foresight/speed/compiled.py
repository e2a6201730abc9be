"""The time of a step whose model torch.compile has compiled, from the operations of the step as written.

Inductor makes one kernel of element-wise operations, sums and copies that follow each other, which then go through
memory once. Here such a run, between two operations that stay kernels of their own (products, attention), takes as long
as the largest of its operations. That is a rule of thumb, and no graph was compiled: the interval reaches from a step
in which these runs cost nothing to the step as written. The optimizer is not compiled.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from recipes.config import Gpu
from recipes.foresight.speed import roofline
from recipes.foresight.speed.operations import JOINABLE, OPTIMIZER_PHASE, Tally
from recipes.foresight.speed.roofline import Prediction

NOTE = (
    "speed: compiled code is not simulated. Element-wise operations, sums and copies between two products are taken as "
    "one kernel; the interval reaches from a step without them to the step as written."
)


def predict(tally: Tally, gpu: Gpu, precision: str, num_processes: int, **figures: Any) -> Prediction:
    """As `roofline.predict`, of the compiled step."""
    written, fused, bare = (
        roofline.predict(one, gpu, precision, num_processes, **figures)
        for one in (tally, with_runs(tally, tally.runs), with_runs(tally, {}))
    )
    return replace(
        fused,
        step_seconds=min(fused.step_seconds, written.step_seconds),
        low_seconds=min(bare.low_seconds, written.low_seconds),
        high_seconds=written.high_seconds,
        notes=[*fused.notes, NOTE],
    )


def with_runs(tally: Tally, runs: dict[str, Counter]) -> Tally:
    """A tally with these operations instead of those that can be joined; each kernel is a call of the host."""
    counts, calls = {}, Counter()
    for phase, written in tally.counts.items():
        if phase == OPTIMIZER_PHASE:
            counts[phase], calls[phase] = written, tally.calls[phase]
            continue
        kept = Counter({operation: times for operation, times in written.items() if operation.kind not in JOINABLE})
        counts[phase] = kept + runs.get(phase, Counter())
        calls[phase] = sum(counts[phase].values())
    return Tally(counts, calls, unknown=set(tally.unknown))
