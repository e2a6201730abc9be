"""The trace of a step: workspaces, tallies of micro-batches, and requests to the allocator, from made-up logs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from legroom.foresight.fake_gpu import replicas
from legroom.foresight.fake_gpu.device import FakeDevice
from legroom.foresight.fake_gpu.op_trace import EMPTIED, OpTrace, Workspace, cublas_workspace_bytes
from legroom.foresight.fake_gpu.replicas import Replicas
from legroom.foresight.speed.operations import Operation, Tally
from legroom.measure.storage_log import StorageEntry
from legroom.units import MIB


@pytest.mark.parametrize(
    "capability, size", [((8, 9), 8_519_680), ((9, 0), 32 * MIB), ((10, 0), 32 * MIB), ((7, 0), 8_519_680)]
)
def test_cublas_takes_what_torch_gives_it(capability, size):
    assert cublas_workspace_bytes(capability) == size


def traced(capability: Any = (8, 0), record_origins: bool = False) -> OpTrace:
    model = torch.nn.Linear(4, 4, bias=False, device="meta")
    return OpTrace(FakeDevice(capability), model, torch.optim.SGD(model.parameters()), record_origins)


def entry(size: int, preexisting: bool = False, paged: bool = False) -> StorageEntry:
    return StorageEntry(size, "other", "forward", preexisting, paged=paged)


def story() -> OpTrace:
    """A weight of 100 bytes, a first step, and one from index 4 on, which leaves its loss of 7 behind."""
    trace = traced()
    weight, one, loss, passing, paged = entry(100, True), entry(1), entry(7), entry(9), entry(50, paged=True)
    late, first_loss = entry(11, True), entry(7)
    trace.log.events = [(weight, 1), (one, 1), (first_loss, 1), (one, -1)]
    trace.log.events += [(late, 1), (passing, 1), (paged, 1), (first_loss, -1), (loss, 1), (passing, -1), (paged, -1)]
    trace.log.step_start = 4
    trace.workspaces = [
        Workspace(0, 1000, True),
        Workspace(3, 1001, False),
        Workspace(4, 1002, False),
        Workspace(5, 1003, True),
        Workspace(5, EMPTIED, False),
        Workspace(11, 1004, False),
    ]
    return trace


def test_paged_states_are_outside_of_the_allocator():
    assert story().paged_bytes == 50


@pytest.mark.parametrize("passes", [0, 1, 2, 3])
def test_micro_batches_that_were_not_run_count_as_one_that_was(passes):
    """The last of them, or of three the second."""
    trace = traced()
    trace.tally.put(Operation("update", "optimizer"), "step", 5)
    trace.tally.places["step"] = Counter({("", "update"): 5})
    trace.tally.unknown.add("strange")
    for number in range(passes):
        tally = Tally()
        tally.put(Operation(f"pass {number}", "matmul"), "forward", 10**number)
        tally.places["forward"] = Counter({("layer", f"pass {number}"): 10**number})
        tally.unknown.add(f"strange {number}")
        trace.passes.append(tally)
    whole = trace.step_tally(8)
    times = {0: [], 1: [8], 2: [1, 7], 3: [1, 6, 1]}[passes]
    found = {operation.name: count for operation, count in whole.operations()}
    assert found == {"update": 5, **{f"pass {n}": count * 10**n for n, count in enumerate(times)}}
    assert whole.calls == {"step": 5, **({"forward": sum(c * 10**n for n, c in enumerate(times))} if times else {})}
    assert whole.places["step"] == {("", "update"): 5}
    if times:
        assert whole.places["forward"] == {("layer", f"pass {n}"): c * 10**n for n, c in enumerate(times)}
    assert whole.unknown == {"strange", *(f"strange {n}" for n in range(passes))}


# --- on the fake device ----------------------------------------------------------------------------


def test_the_mean_of_a_loss_has_a_workspace():
    model = torch.nn.Linear(4, 4, bias=False, device="meta")
    with FakeDevice((8, 0)) as fake, OpTrace(fake, model, torch.optim.SGD(model.parameters())) as trace:
        x, y = (torch.empty(6, 4, device=fake.device) for _ in range(2))
        torch.nn.functional.smooth_l1_loss(x, y)
        torch.nn.functional.smooth_l1_loss(x, y, reduction="none")
        torch.nn.functional.soft_margin_loss(x, y)
        (x * y).sum()
    assert [(each.bytes, each.kept) for each in trace.workspaces] == [(6 * 4 * 4, False)]


def test_a_cpu_has_no_workspaces():
    scatter = torch.ops.c10d._reduce_scatter_base_.default
    trace = traced(None)
    with trace.fake as fake:
        with fake.building():
            into, given, out = torch.empty(8), torch.empty(16), torch.empty(16, 4)
        trace.ledger.begin_step()
        trace.after(torch.ops.aten.mm.default, (out, out.T), {}, torch.empty(16, 16), None)
        began = len(trace.log.events)
        trace.after(scatter, (into, given), {}, (into, None), None)
        trace.ledger.end_step()
    made = [(entry.bytes, sign) for entry, sign in trace.log.events[began:]]
    assert not trace.workspaces and (64, 1) in made


# --- several GPUs in one process -------------------------------------------------------------------


class Output(dict):
    pass


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(size)) for size in (3, 2, 6, 1)])
        self.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x):
        loss = sum((weight * (index + 1)).sum() for index, weight in enumerate(self.weights)) * x.sum()
        return Output(loss=loss, logits=x * 1, note="text")


def test_outputs_of_all_replicas_are_gathered_and_weights_are_sent():
    whole = Replicas(Model(), 3)
    output = whole(x=torch.ones(2, 5))
    assert output["logits"].shape == (6, 5) and output["loss"].dim() == 0 and output["note"] == "text"
    assert whole.gathered_bytes == 6 * 5 * 4
    tally = Tally()
    tally.calls["forward"] = 7
    whole.add_transfers(tally, 2)
    sent = {(one.name, one.bytes, one.shape): count for one, count in tally.operations()}
    weights = 4 * 14 * 3 // 2
    assert sent == {
        ("broadcast", weights, (3, 1)): 2,
        ("gather", 120, (3, 1)): 2,
        ("reduce", weights, (3, 1)): 2,
    }
    assert tally.calls == {"forward": (7 + 2 + 2) * 3, "backward": 2}
    assert replicas.BUFFER_BYTES == 10 * MIB
