"""Steps on batches of different lengths: what the caching allocator reserves once padded batches have fragmented it.

A longer batch does not find its blocks among those that shorter ones have split, so that reserved memory grows from
step to step although no step needs more than the one on the longest rows. A few steps are simulated on batches in the
order of the training, and their requests are replayed many times in random order.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch

from recipes.data.collate import IGNORE_INDEX
from recipes.foresight.fake_gpu import known_values
from recipes.foresight.fake_gpu.device import FakeDevice
from recipes.foresight.fake_gpu.op_trace import OpTrace
from recipes.foresight.memory import allocator
from recipes.foresight.memory.settings import Settings
from recipes.training import accelerate_loop

DRAWN_STEPS = 6
DRAWN_BATCHES = 12  # of all drawn steps together, beyond the first two steps
REPLAYED_STEPS = 60


@dataclass(frozen=True)
class UnevenLengths:
    """What steps on drawn batches ask of the allocator.

    steps: that were replayed. demand: with the GPU's capacity. free_demand: without one. expandable_demand: with the
    capacity and expandable_segments. padding: share of the positions in the drawn batches that are padding.
    """

    steps: int
    demand: allocator.Demand
    free_demand: allocator.Demand
    expandable_demand: allocator.Demand
    padding: float


@dataclass(frozen=True)
class DrawnSteps:
    """Requests of simulated steps on drawn batches, in random order. steps: how many. padding: see UnevenLengths."""

    steps: int
    events: list[tuple[int, int]]
    padding: float


def draw(loop: Any, fake: FakeDevice, optimizer: torch.optim.Optimizer, micro_batches: int) -> DrawnSteps | None:
    """Simulate steps on the first batches of the training; None where all are equally long.

    Their order in the replay is random, of a fixed seed, but first each comes once, as they were drawn.

    loop: of the raw recipe, after its first steps. micro_batches: of an optimizer step.
    """
    trace = OpTrace(fake, loop.bare_model, optimizer)
    count = max(2, min(DRAWN_STEPS, DRAWN_BATCHES // micro_batches))
    lengths, ends, positions, filled = set(), [], 0, 0
    loop.loader.set_epoch(0)
    for batches in accelerate_loop.chunks(loop.loader, micro_batches):
        lengths |= {tuple(batch["input_ids"].shape) for batch in batches}
        positions += sum(batch["input_ids"].numel() for batch in batches)
        filled += sum(map(_filled, batches))
        with trace:
            figures = loop.step(batches)
        del batches, figures  # what a step leaves behind is freed at its end
        ends.append(len(trace.log.events))
        if len(ends) == count:
            break
    if len(lengths) < 2 or len(ends) < 2:
        return None
    order = list(range(len(ends)))
    chance = random.Random(0)
    while len(order) < REPLAYED_STEPS:
        order += chance.sample(range(len(ends)), len(ends))
    return DrawnSteps(len(order), trace.allocator_events_of(ends, order), 1 - filled / positions)


def _filled(batch: Any) -> int:
    """The positions of a batch that are no padding, as far as the batch says."""
    mask, labels = batch.get("attention_mask"), batch["labels"]
    if mask is None and labels.dim() == 2:
        mask = known_values.value_of(labels)
        return batch["input_ids"].numel() if mask is None else int((mask != IGNORE_INDEX).sum())
    known = None if mask is None else known_values.value_of(mask)
    return batch["input_ids"].numel() if known is None else int(known.sum())


def replay(drawn: DrawnSteps, capacity_bytes: int, settings: Settings) -> UnevenLengths:
    """What the drawn steps ask of an allocator."""
    expandable = Settings(expandable_segments=True, memory_fraction=settings.memory_fraction)
    return UnevenLengths(
        drawn.steps,
        allocator.replay(drawn.events, capacity_bytes, settings),
        allocator.replay(drawn.events, settings=settings),
        allocator.replay(drawn.events, capacity_bytes, expandable),
        drawn.padding,
    )
