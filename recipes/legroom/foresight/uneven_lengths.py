"""Steps on batches of different lengths: what the caching allocator reserves once padded batches have fragmented it.

A longer batch does not find its blocks among those of shorter ones, so that reserved memory grows from step to step
although no step needs more than the one on the longest rows. How far depends on the order, most of all on how late the
longest come: the steps on the first batches of the training and on the longest rows are simulated, and their requests
are replayed in several orders.
"""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy
import torch

from legroom.data import data_loader
from legroom.data.data_loader import Batch
from legroom.estimator.fake_gpu.device import FakeDevice
from legroom.estimator.fake_gpu.op_trace import OpTrace
from legroom.estimator.memory import allocator
from legroom.estimator.memory.settings import Settings
from legroom.estimator.speed.operations import Tally
from legroom.foresight import run_schedule
from legroom.training import accelerate_loop

DRAWN_STEPS = 8
SEARCHED_STEPS = 200  # behind those, for one on rows of another length where all of those have the same
DRAWN_BATCHES = 16  # of all drawn steps together, beyond the first two steps
LONGEST_BATCHES = 2  # in the step on the longest rows: one that allocates the gradients, and one that adds to them
ORDERS = 5
ROUNDS = 3  # how often each step comes in an order
LACKING_PRECISION = 0.005  # of what the longest rows need


@dataclass(frozen=True)
class FirstSteps:
    """The first steps of the training as it orders the rows. tallies: the operations of each, on one rank.

    unpadded_tokens: of all these steps, on all ranks, without padding. work: (3,) of each step (`run_schedule`).
    """

    tallies: list[Tally]
    unpadded_tokens: int
    work: list[numpy.ndarray]


@dataclass(frozen=True)
class DrawnSteps:
    """Requests of simulated steps on drawn batches; what no GPU's capacity changes.

    steps: of an order that was replayed. orders: the requests of each, the first as the training has it. padding: share
    of the positions in the drawn batches that are padding. free_demands: of each order without a capacity.
    lacking_bytes: by how much a GPU that has just what the longest rows need is too small for the worst order.
    """

    steps: int
    orders: list[list[allocator.Request]]
    padding: float
    free_demands: list[allocator.Demand]
    lacking_bytes: int


@dataclass(frozen=True)
class UnevenLengths:
    """What steps on drawn batches ask of the allocator of a GPU.

    demands: of each order with the GPU's capacity. expandable_demand: of the first order with the capacity and
    expandable_segments.
    """

    drawn: DrawnSteps
    demands: list[allocator.Demand]
    expandable_demand: allocator.Demand


def draw(
    loop: Any,
    fake: FakeDevice,
    optimizer: torch.optim.Optimizer,
    micro_batches: int,
    longest_events: list[allocator.Request],
    settings: Settings,
    of_mode: Callable[[Tally, int], Tally] = lambda tally, _: tally,
    show: Callable[[str], None] = lambda text: None,
) -> tuple[FirstSteps, DrawnSteps | None]:
    """Simulate steps on the first batches of the training and on the longest rows.

    Returns the first, and the requests of all to the allocator; None where all are equally long.

    In the first order they come as drawn, the longest last, and then at random; the other orders are random. All are of
    a fixed seed, and begin with the first batches of the training, on which parameters and states are allocated.

    loop: of the raw recipe, after its first steps. micro_batches: of an optimizer step. longest_events: the requests of
    steps on the longest rows alone. settings: of the allocator. of_mode: adds to the operations of a step of so many
    micro-batches what the parallelism adds. show: called with what is done now.
    """
    trace = OpTrace(fake, loop.bare_model, optimizer)
    count = max(2, min(DRAWN_STEPS, DRAWN_BATCHES // micro_batches))
    lengths, ends, tallies, work = set(), [], [], []
    positions, filled = 0, 0  # all, and those without padding, of all ranks
    loop.loader.set_epoch(0)
    steps = accelerate_loop.chunks(loop.loader, micro_batches)
    for batches in steps:
        show(f"rows of other lengths, step {len(ends) + 1} of {count}")
        lengths |= _shapes(batches)
        positions += sum(map(_positions, batches))
        filled += sum(batch.unpadded_everywhere for batch in batches)
        ends.append(step(loop, trace, batches))
        work.append(run_schedule.work_of(batches))
        tallies.append(of_mode(trace.step_tally(len(trace.passes)), len(batches)))  # stages may pass more often
        del batches  # what a step leaves behind is freed at its end
        if len(ends) == count:
            break
    first = FirstSteps(tallies, filled, work)
    longest = next(accelerate_loop.chunks(data_loader.largest_step(loop.data, loop.args), micro_batches))
    lengths |= _shapes(longest)
    for batches in itertools.islice(steps, SEARCHED_STEPS if len(lengths) < 2 else 0):
        if not _shapes(batches) <= lengths:  # rows of other lengths come later: one step of them tells
            lengths |= _shapes(batches)
            positions += sum(map(_positions, batches))
            filled += sum(batch.unpadded_everywhere for batch in batches)
            ends.append(step(loop, trace, batches))
            del batches
            break
    if len(lengths) < 2:
        return first, None
    ends.append(step(loop, trace, longest[:LONGEST_BATCHES]))
    show("the allocator, with batches in other orders")
    orders = _orders(len(ends))
    events = [trace.allocator_events_of(ends, order) for order in orders]
    return first, drawn_steps(len(orders[0]), events, max(0.0, 1 - filled / positions), longest_events, settings)


def drawn_steps(
    steps: int,
    orders: list[list[allocator.Request]],
    padding: float,
    longest_events: list[allocator.Request],
    settings: Settings,
) -> DrawnSteps:
    """The requests of drawn steps with what they need on a GPU without limit, and on one that has little."""
    free = [allocator.replay(events, settings=settings) for events in orders]
    needed = allocator.replay(longest_events, settings=settings).peak_reserved_bytes
    growing = [events for demand, events in zip(free, orders) if demand.peak_reserved_bytes > needed]
    most = max((demand.peak_reserved_bytes for demand in free), default=needed) - needed
    return DrawnSteps(steps, orders, padding, free, _lacking(growing, needed, most, settings))


def _lacking(orders: list[list[allocator.Request]], needed_bytes: int, most_bytes: int, settings: Settings) -> int:
    """What a GPU with needed_bytes lacks for all orders, by bisection. most_bytes: so much more is enough."""

    lacking = 0
    for order in orders:  # an order that lacks no more than those before it is replayed once
        lacking = _lacking_in(order, needed_bytes, lacking, most_bytes, settings)
    return lacking


def _lacking_in(order: list[allocator.Request], needed_bytes: int, low: int, high: int, settings: Settings) -> int:
    """Between low and high, which is enough: what a GPU with needed_bytes lacks for an order."""

    def suffices(more: int) -> bool:
        return not allocator.replay(order, needed_bytes + more, settings).missing_bytes

    if suffices(low):
        return low
    while high - low > LACKING_PRECISION * needed_bytes:
        middle = (low + high) // 2
        if suffices(middle):
            high = middle
        else:
            low = middle
    return high


def _shapes(batches: list[Any]) -> set[tuple[int, ...]]:
    return {tuple(batch["input_ids"].shape) for batch in batches}


def step(loop: Any, trace: OpTrace, batches: list[Any]) -> int:
    """Simulate a step of the raw recipe. Returns where it ends in the log."""
    with trace:
        figures = loop.step(batches)
    del figures
    return len(trace.log.events)


def _orders(count: int) -> list[list[int]]:
    """Orders of `count` steps, each of which comes ROUNDS times. All begin with step 0."""
    chance = random.Random(0)
    orders = []
    for number in range(ORDERS):
        if number == 0:
            order = list(range(count))
        else:
            order = [0, *chance.sample(range(1, count), count - 1)]
        for _ in range(ROUNDS - 1):
            order += chance.sample(range(count), count)
        orders.append(order)
    return orders


def _positions(batch: Batch) -> int:
    """The positions of a batch with its padding on all ranks, as if the others had rows as long as this one."""
    return batch.rows_everywhere * batch["input_ids"].shape[1]


def replay(drawn: DrawnSteps, capacity_bytes: int, settings: Settings) -> UnevenLengths:
    """What the drawn steps ask of an allocator."""
    expandable = Settings(expandable_segments=True, memory_fraction=settings.memory_fraction)
    demands = []
    for demand, events in zip(drawn.free_demands, drawn.orders):
        if demand.peak_reserved_bytes <= capacity_bytes:  # then a limit changes nothing
            demands.append(replace(demand, capacity_bytes=capacity_bytes))
        else:
            demands.append(allocator.replay(events, capacity_bytes, settings))
    return UnevenLengths(drawn, demands, allocator.replay(drawn.orders[0], capacity_bytes, expandable))
