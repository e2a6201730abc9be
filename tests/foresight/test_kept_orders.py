"""Steps on batches of different lengths: their orders, what they need on a full card, and sizes of a model that tiles
leave partly empty; as kept values."""

from __future__ import annotations

import copy
import random
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import compose
from support.known_values import known

from legroom.data import data_loader
from legroom.foresight import uneven_lengths
from legroom.foresight.memory.settings import Settings
from legroom.foresight.speed import multiples
from legroom.foresight.speed.operation_names import COLLECTIVE, ELEMENTWISE, MATMUL
from legroom.foresight.speed.operations import Operation, Tally
from legroom.training import accelerate_loop
from legroom.units import MIB


def test_orders_begin_with_the_first_step_and_have_each_step_three_times(data_regression):
    found = {count: uneven_lengths._orders(count) for count in (2, 3, 5)}
    for count, orders in found.items():
        assert len(orders) == 5 and orders[0][:count] == list(range(count))
        assert all(order[0] == 0 and Counter(order) == dict.fromkeys(range(count), 3) for order in orders)
    data_regression.check(known(found))


def test_what_orders_need_and_lack(data_regression):
    """Batches of six lengths in three orders: reserved without a limit and with one, and what the longest's lacks."""
    chance, found = random.Random(3), {}
    for settings in (Settings(), Settings(expandable_segments=True, memory_fraction=0.5)):
        orders = []
        for _ in range(3):
            sizes = [chance.choice((7, 12, 19, 26, 33, 40)) for _ in range(9)]
            order = []
            for number, size in enumerate(sizes):
                keys = [3 * number + part for part in range(3)]
                order += [(key, (size + 3 * part) * MIB) for part, key in enumerate(keys)]
                order += [(key, -1) for key in keys[:2]] + [(keys[2], -1)] * (number % 3 > 0)
            orders.append(order)
        longest = [(key, (40 + 3 * key) * MIB) for key in range(3)]
        drawn = uneven_lengths.drawn_steps(9, orders, 0.25, longest, settings)
        seen = {
            "free": drawn.free_demands,
            "lacking": drawn.lacking_bytes,
            "steps": drawn.steps,
            "padding": drawn.padding,
        }
        limits = [drawn.free_demands[0].peak_reserved_bytes + more for more in (-10 * MIB, -1, 0)]
        for limit in limits:
            replayed = uneven_lengths.replay(drawn, limit, settings)
            seen[f"limit {limit}"] = [replayed.demands, replayed.expandable_demand]
        found[f"expandable {settings.expandable_segments}"] = seen
    assert uneven_lengths.drawn_steps(1, [], 0.0, [(0, MIB)], Settings()).lacking_bytes == 0
    data_regression.check(known(found))


class Batch(dict):
    """A batch with its rows on all ranks, and tokens that are not padding."""

    def __init__(self, rows: int, length: int, filled: int):
        super().__init__(input_ids=torch.zeros(rows, length))
        self.rows_everywhere, self.unpadded_everywhere = 2 * rows, filled


@pytest.fixture
def drawn(monkeypatch):
    """drawn(lengths, micro_batches) -> (steps that were simulated, by length; first steps; drawn steps)."""

    def draw(lengths: list[int], micro_batches: int):
        batches = [Batch(2, length, 3 * length) for length in lengths]
        steps, simulated = [], []
        for start in range(0, len(batches), micro_batches):
            steps.append(batches[start : start + micro_batches])
        trace = SimpleNamespace(
            step_tally=lambda count: Tally(idle=count),
            allocator_events_of=lambda ends, order: [(number, MIB * ends[number]) for number in order],
        )
        epochs = []
        loop: Any = SimpleNamespace(
            bare_model=None, data=None, args=None, loader=SimpleNamespace(set_epoch=epochs.append, steps=steps)
        )
        whole = SimpleNamespace(steps=[[Batch(2, 9, 27)] * micro_batches])
        monkeypatch.setattr(uneven_lengths, "OpTrace", lambda *_: trace)
        monkeypatch.setattr(accelerate_loop, "chunks", lambda loader, count: iter(loader.steps))
        monkeypatch.setattr(data_loader, "largest_step", lambda *_: whole)

        def step(_, __, taken: list) -> int:
            simulated.append(" ".join(str(batch["input_ids"].shape[1]) for batch in taken))
            trace.passes = taken
            return len(simulated)

        monkeypatch.setattr(uneven_lengths, "step", step)
        first, found = uneven_lengths.draw(loop, None, None, micro_batches, [(0, MIB)], Settings())  # type: ignore[arg-type]
        assert epochs == [0]
        tallies = [tally.idle for tally in first.tallies]
        kept = found and {"steps": found.steps, "padding": round(found.padding, 9), "orders": len(found.orders)}
        return {"simulated": simulated, "tallies": str(tallies), "unpadded": first.unpadded_tokens, "drawn": kept}

    return draw


def test_so_many_first_steps_are_drawn_and_the_longest_behind_them(drawn, data_regression):
    data_regression.check(
        {
            "of one micro-batch": drawn([5, 6, 7] * 10, 1),
            "of four": drawn([5, 6, 7, 8] * 10, 4),
            "of sixteen": drawn([5] * 16 + [6] * 16 + [7] * 16, 16),
            "with few batches": drawn([5, 6], 1),
            "all alike": drawn([9] * 300, 1),
            "another one late": drawn([9] * 100 + [4] + [3] * 100, 1),
            "another one too late": drawn([9] * 208 + [4], 1),
            "another one just in time": drawn([9] * 207 + [4], 1),
        }
    )


# --- sizes that are no multiple of 64 ------------------------------------------------------------------------------


def sized(vocab: int, width: int, feed_forward: int, others: int = 0) -> Tally:
    """A step with products of these sizes in 16 bits, and other work."""
    tally = Tally()
    for rows, columns, depth in ((4096, vocab, width), (4096, 3 * width, width), (4096, feed_forward, width)):
        moved = 2 * (rows * depth + depth * columns + rows * columns)
        flops = 2 * rows * columns * depth
        tally.put(Operation("mm", MATMUL, "bf16", flops, moved, 1, (1, rows, columns, depth)), "forward", 3)
    tally.put(Operation("add", ELEMENTWISE, bytes=1 + others), "backward")
    tally.put(Operation("allreduce_", COLLECTIVE, bytes=10**12), "backward")
    return tally


def test_sizes_are_named_where_the_next_multiple_is_faster(file_regression):
    cfg = copy.deepcopy(compose("recipe=estimate", "model=gpt2", "gpu=a100_40gb", "precision=bf16").cfg)
    lines = []
    cases: list[tuple[int, int, int, dict[str, Any]]] = [
        (50257, 768, 3072, {}),
        (50304, 768, 3072, {}),
        (50304, 756, 3072, {"heads": 12}),  # the next one that 12 and 64 divide
        (50304, 756, 3072, {"heads": None}),
        (50304, 768, 3001, {}),
        (50257, 756, 3001, {}),
        (50257, 768, 3072, {"others": 10**12}),  # what it gains is lost in the rest
        (50257, 768, 3072, {"pretrained": "gpt2"}),
        (50257, 768, 3072, {"seq_len": 50257}),  # it may be the rows of the batch
        (50257, 768, 3072, {"per_device": 50257 // 29, "seq_len": 29}),
    ]
    for vocab, width, feed_forward, more in cases:
        own = copy.deepcopy(cfg)
        own.model = replace(own.model, vocab=vocab, width=width, feed_forward=feed_forward)
        own.model.heads, own.model.pretrained = more.get("heads", 12), more.get("pretrained")
        own.data.seq_len, own.batch.per_device = more.get("seq_len", 512), more.get("per_device", 8)
        found = multiples.notes(own, sized(vocab, width, feed_forward, more.get("others", 0)))
        lines += [f"{vocab} {width} {feed_forward} {more}:", *(f"  {line}" for line in found)]
    assert multiples.notes(cfg, Tally()) == []
    file_regression.check("\n".join(lines) + "\n")
