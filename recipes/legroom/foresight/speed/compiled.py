"""The time of a step whose model torch.compile has compiled.

Where the graphs were compiled for the fake device (fake_gpu/compiled_graph.py), their kernels are known with what they
read and write. Where they were not (several processes, a search), element-wise operations, sums and copies that follow
each other, between two operations that stay kernels of their own, are taken as one kernel that takes as long as the
largest of them. Neither was compared with a compiled step on a GPU: the interval reaches from a step in which these
kernels cost nothing to the step as written. The optimizer is not compiled.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from legroom.config import Gpu
from legroom.foresight.speed import roofline
from legroom.foresight.speed.operations import JOINABLE, OPTIMIZER_PHASE, Tally
from legroom.foresight.speed.roofline import Prediction

INTERVAL = "the interval reaches from a step without them to the step as written."
OF_GRAPHS = (
    "speed: element-wise operations, sums and copies are the kernels that torch.compile's graphs become by Inductor's "
    f"rules in short, each as long as its traffic; {INTERVAL}"
)
OF_RUNS = (
    "speed: the compiled kernels are not known here. Element-wise operations, sums and copies between two products are "
    f"taken as one kernel; {INTERVAL}"
)


def predict(
    tally: Tally, gpu: Gpu, precision: str, num_processes: int, graphs: Tally | None = None, **figures: Any
) -> Prediction:
    """As `roofline.predict`, of the compiled step.

    tally: of the step as written. graphs: of the compiled graphs, where they are known.
    """
    kernels = with_runs(tally, tally.runs) if graphs is None else of_graphs(tally, graphs)
    # Graphs may have other products than the step as written, such as those of another kernel of attention.
    written, fused, *bare = (
        roofline.predict(one, gpu, precision, num_processes, **figures)
        for one in (tally, kernels, with_runs(tally, {}), with_runs(kernels, {}))
    )
    return replace(
        fused,
        step_seconds=min(fused.step_seconds, written.step_seconds),
        low_seconds=min(one.low_seconds for one in (written, *bare)),
        high_seconds=written.high_seconds,
        notes=[*fused.notes, OF_RUNS if graphs is None else OF_GRAPHS],
    )


def of_graphs(tally: Tally, graphs: Tally) -> Tally:
    """The tally of a compiled step: forward and backward pass as the graphs run them, where each kernel is a call of
    the host and a view is none; the optimizer's step as written."""
    counts = {phase: made for phase, made in graphs.counts.items() if phase != OPTIMIZER_PHASE}
    calls = Counter({phase: sum(made.values()) for phase, made in counts.items()})
    if OPTIMIZER_PHASE in tally.counts:
        counts[OPTIMIZER_PHASE] = tally.counts[OPTIMIZER_PHASE]
    calls[OPTIMIZER_PHASE] = tally.calls[OPTIMIZER_PHASE]
    return Tally(counts, calls, unknown=set(graphs.unknown))


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
