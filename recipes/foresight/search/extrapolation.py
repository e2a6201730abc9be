"""A first look at a configuration from a model of a few layers: its time, and less memory than which it cannot take.

Layers are alike. So a step's seconds grow by the same amount with each, and so do the bytes alive at any place
of the step: their peak is the largest of several straight lines, and a line through two points of it never lies
above it further on. What the optimizer adds does not depend on the batch, nor the passes on the optimizer, so a
few sketches stand for many configurations. FSDP with weights that are given back after the forward pass is not sketched:
gathered ahead, they make the lines bend. Its sketch is made of the one where they stay.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, replace

from recipes.foresight import simulation
from recipes.foresight.speed import roofline
from recipes.foresight.speed.operation_names import COLLECTIVE
from recipes.foresight.speed.operations import Operation, Tally
from recipes.options import parallelism
from recipes.parallelism import fsdp
from recipes.units import MIB

DEPTHS = (1, 2)  # layers of the two models that are looked at
DEPTHS_SHARDED = (2, 3)  # with FSDP: the gradients that one layer sends are alive while the next one's are made
PASSES, STEP = ("forward", "backward"), ("step",)
TIMES = ("device_seconds", "host_seconds", "link_seconds", "collectives")
STAYS_GATHERED = {"full_shard": "shard_grad_op", "hybrid_shard": "hybrid_shard_zero2"}  # strategy -> its like


@dataclass(frozen=True)
class Extrapolation:
    """Of one optimizer step: the passes of its micro-batches, and what is done once after them.

    pass_bytes: the peak until the last pass, less the optimizer's states. step_bytes: the peak in the rest, with them.
    gathered_bytes: the weights, whole, of the units that FSDP gathers, but for the model's own. Seconds of the
    device, the host and the link, which overlap, and the number of collectives.
    """

    pass_bytes: float
    step_bytes: float
    states_bytes: float
    gathered_bytes: float
    micro_batches: float
    pass_device_seconds: float
    pass_host_seconds: float
    pass_link_seconds: float
    pass_collectives: float
    step_device_seconds: float
    step_host_seconds: float
    step_link_seconds: float
    step_collectives: float


def least_bytes(passes: Extrapolation, step: Extrapolation) -> float:
    """What the passes of one sketch and the optimizer of another take at least."""
    return max(passes.pass_bytes + step.states_bytes, step.step_bytes)


def step_seconds(passes: Extrapolation, step: Extrapolation, light: Extrapolation | None = None) -> float:
    """A step of the passes of one sketch and the optimizer of another.

    light: a sketch like `step` with the optimizer of `passes`. What `passes` does outside its passes is then its own,
    and only the two optimizers' difference is taken from elsewhere.
    """
    light = light or passes
    return roofline.overlapped(
        *(
            getattr(passes, f"pass_{name}")
            + getattr(passes, f"step_{name}")
            + getattr(step, f"step_{name}")
            - getattr(light, f"step_{name}")
            for name in TIMES
        )
    )


def without_resharding(cfg):
    """The configuration whose weights stay gathered from the forward to the backward pass; itself where they do, or are whole."""
    if cfg.parallelism.strategy not in STAYS_GATHERED:
        return cfg
    return replace(cfg, parallelism=replace(cfg.parallelism, strategy=STAYS_GATHERED[cfg.parallelism.strategy]))


def resharding(gathered: Extrapolation, small: Extrapolation, small_gathered: Extrapolation) -> Extrapolation:
    """The sketch of the passes that give weights back after the forward pass, from the one of those that do not.

    It computes the same, and gathers more: so much a micro-batch, whatever its size, as `small` does more than
    `small_gathered`. At any place it has the same alive, but for weights that are not gathered there.
    """
    times = gathered.micro_batches / small.micro_batches
    more = {
        f"pass_{name}": getattr(gathered, f"pass_{name}")
        + times * (getattr(small, f"pass_{name}") - getattr(small_gathered, f"pass_{name}"))
        for name in TIMES
    }
    return replace(gathered, pass_bytes=gathered.pass_bytes - gathered.gathered_bytes, **more)


def extrapolate(cfg, precisions: list[str], folder: str) -> list[Extrapolation]:
    """A sketch for each of the precisions, which differ in the speed of the same operations.

    Weights that are loaded say themselves how many layers they have: these models are looked at whole.
    """
    layers = cfg.model.layers
    depths = DEPTHS_SHARDED if parallelism.sharded(cfg) else DEPTHS
    if cfg.model.pretrained or layers <= depths[-1]:
        depths = (layers,)
    looks, weights = [], []
    for depth in depths:
        shallow = copy.deepcopy(cfg)
        shallow.model.layers = depth
        figures, sizes = _figures(shallow, precisions, folder)
        looks.append(figures)
        weights.append(sizes)
    if len(depths) == 1:
        return [Extrapolation(*figures) for figures in looks[0]]
    more = layers - depths[0]
    made = [Extrapolation(*(low + more * (high - low) for low, high in zip(*pair))) for pair in zip(*looks)]
    if cfg.parallelism.num_processes == 1 or parallelism.sharded(cfg):
        return made
    first = len(_buckets(cfg, weights[0]))
    return [
        _in_buckets(
            cfg, one, Extrapolation(*figures).pass_collectives / first * len(_buckets(cfg, _deeper(*weights, more)))
        )
        for one, figures in zip(made, looks[0])
    ]


def _in_buckets(cfg, made: Extrapolation, collectives: float) -> Extrapolation:
    """DDP sends bucket by bucket, and two layers need not fill one more than one layer: their number is no line."""
    empty = Operation("allreduce_", COLLECTIVE)
    each = roofline.collective_seconds(
        empty, cfg.gpu, cfg.parallelism.num_processes, roofline.efficiencies(cfg.gpu.chip)
    )
    link = made.pass_link_seconds + (collectives - made.pass_collectives) * each
    return replace(made, pass_collectives=collectives, pass_link_seconds=link)


def _buckets(cfg, weights: list[tuple]) -> list[list[int]]:
    """The buckets into which DDP puts gradients. weights: (elements, dtype) of each, in the order in which they come."""
    import torch
    import torch.distributed as dist

    limits = [dist._DEFAULT_FIRST_BUCKET_BYTES, cfg.parallelism.bucket_cap_mb * MIB]
    tensors = [torch.empty(elements, dtype=dtype, device="meta") for elements, dtype in weights]
    return dist._compute_bucket_assignment_by_size(tensors, limits)[0]


def _deeper(low: list, high: list, more: int) -> list:
    """The list of a model with `more` layers than `low`, of which `high` has one more."""
    same = next((index for index, pair in enumerate(zip(low, high)) if pair[0] != pair[1]), len(low))
    return low[:same] + high[same : same + len(high) - len(low)] * more + low[same:]


def _figures(cfg, precisions: list[str], folder: str) -> tuple[list[list[float]], list[tuple]]:
    """(the fields of a Sketch for each precision, (elements, dtype) of each weight, the last first) of the model as it is."""
    seen = simulation.simulate_step(cfg, folder)
    states = seen.parts["largest_bytes"]["optimizer"] - seen.paged_bytes
    passes, step = _peaks(seen)
    workspaces = sum(workspace.bytes for workspace in seen.trace.workspaces if workspace.kept)
    sizes = [
        passes - states + workspaces,
        step + workspaces,
        states,
        _gathered_bytes(cfg, seen.trace.model),
        seen.micro_batches,
    ]
    made = []
    for name in precisions:
        parts = [
            roofline.predict(_part(seen.tally, phases), cfg.gpu, name, cfg.parallelism.num_processes)
            for phases in (PASSES, STEP)
        ]
        made.append(sizes + [getattr(told, time) for told in parts for time in TIMES])
    return made, [(weight.numel(), weight.dtype) for weight in reversed(list(seen.trace.model.parameters()))]


def _peaks(seen) -> tuple[int, int]:
    """The most bytes that are alive on the device in the last step: until its last pass ends, and after that."""
    passes = step = 0
    live, start = -seen.paged_bytes, seen.trace.log.step_start
    for index, (entry, sign) in enumerate(seen.trace.log.events):
        live += sign * entry.bytes
        if index < start or sign < 0:
            continue
        if entry.phase in PASSES:
            passes, step = max(passes, step, live), 0  # what seemed to be the step was between two passes
        else:
            step = max(step, live)
    return passes, step


def _gathered_bytes(cfg, network) -> int:
    """The weights of the units that FSDP gathers one after the other, whole, in the type they are gathered in."""
    if not parallelism.sharded(cfg):
        return 0
    computed = 2 if cfg.precision.name in ("fp16", "bf16") else None  # sharding.shard: MixedPrecisionPolicy
    return sum(
        weight.numel() * (computed or weight.element_size())
        for unit in fsdp.units(network, cfg.parallelism.wrap, cfg.parallelism.wrap_min_parameters)
        for weight in unit.parameters()
    )


def _part(tally: Tally, phases: tuple[str, ...]) -> Tally:
    return Tally(
        {phase: tally.counts[phase] for phase in phases if phase in tally.counts},
        Counter({phase: tally.calls[phase] for phase in phases}),
    )
