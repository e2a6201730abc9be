"""The ranks of a pipeline that an estimate simulates, and what becomes of their figures.

The ranks between the first and the last have layers alone, the earlier ones no fewer, and with schedule=1f1b more
micro-batches at a time: the second stands for all of them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from legroom.config import Config


def simulated_ranks(cfg: Config) -> list[int]:
    """The ranks that are simulated. Of the ranks of a mesh's stage the first has the largest part of what does not
    divide: of weights by torch's rule, which gives the last ranks less."""
    last = cfg.parallelism.stage_ranks - 1
    apart = 1
    if cfg.parallelism.kind == "mesh":
        apart = cfg.parallelism.world_size // cfg.parallelism.stage_ranks
    return [stage * apart for stage in sorted({0, min(1, last), last})]


def of(cfg: Config, steps: Sequence[Any]) -> Any:
    """The `SimulatedStep` of a job from those of `simulated_ranks`: the memory of the fullest, the operations of
    the one that computes most."""
    if len(steps) == 1:
        return steps[0]
    fullest = max(steps, key=lambda step: (_needed(step), step.parts["peak_tensor_bytes"]))
    slowest = max(steps, key=lambda step: step.model_flops or 0)
    first, *between, last = steps
    flops = None
    if all(step.model_flops is not None for step in steps):
        layers = first.model.layers - first.own_layers - last.own_layers  # of all between
        flops = sum(step.model_flops for step in (first, last))
        flops += sum(step.model_flops / step.own_layers * layers for step in between)
    said = (
        f"parallelism={cfg.parallelism.name}: the memory is that of rank {fullest.rank} of "
        f"{cfg.parallelism.world_size}, which needs most, and the time that of rank {slowest.rank}, which computes "
        "most."
    )
    return replace(
        fullest,
        tally=slowest.tally,
        first_steps=slowest.first_steps,
        model_flops=None if flops is None else round(flops / cfg.parallelism.stages),
        warnings=[*fullest.warnings, said],
    )


def _needed(step: Any) -> int:
    return 0 if step.demand is None else step.demand.missing_bytes + step.demand.peak_reserved_bytes
