"""What the ledger says of each storage of small steps: its part, its phase and what made it, as kept."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from legroom.measure import outside_autograd
from legroom.measure.memory_attribution import COPY, GRADIENT, OTHER, PARAMETER, MemoryAttribution, kept_tensors
from legroom.measure.memory_ledger import MemoryLedger
from legroom.measure.op_observer import OpObserverMode, have_own_dispatch
from legroom.measure.storage_log import StepPhase, StorageLog
from legroom.measure.tensor_origins import TensorOrigins


class Block(nn.Module):
    """(rows, 4) -> 5 -> sine -> 4."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 5), nn.Linear(5, 4, bias=False)

    def forward(self, x):
        return self.down(self.up(x).sin())


class Net(nn.Module):
    """Two blocks, the second computed again where that is asked for; and a buffer."""

    def __init__(self, recomputes: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.recomputes = Block(), Block(), recomputes
        self.scale = nn.Buffer(torch.ones(7))
        self.first.up.bias.requires_grad_(False)

    def forward(self, x):
        x = self.first(x) * self.scale[0]
        return checkpoint(self.second, x, use_reentrant=False) if self.recomputes else self.second(x)


def step(model: Any, optimizer: Any, precision: Any = None) -> None:
    for _ in range(2):
        cast = torch.autocast("cpu", precision) if precision else contextlib.nullcontext()
        with cast:
            loss = model(torch.ones(3, 4)).sum()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], foreach=False)


def lines(ledger: MemoryLedger) -> list[str]:
    """A line for each event: bytes, kind, phase of the allocation, what made it. What is freed at once, as copies of
    autocast are, is in order of its text."""
    found: list[str] = []
    freed: list[str] = []
    for index, (entry, sign) in enumerate(ledger.log.events):
        begins = "-- the step" if index == ledger.log.step_start else ""
        made = ledger.origins[id(entry)] if ledger.origins else ""
        marks = " before" * entry.preexisting + " recomputed" * entry.recomputed + " paged" * entry.paged
        line = f"{sign * entry.bytes:+} {entry.kind} {entry.phase}{marks}: {made}"
        if sign > 0 or begins:
            found, freed = [*found, *sorted(freed), *filter(None, [begins])], []
        (found if sign > 0 else freed).append(line)
    return found + sorted(freed)


def kept(ledger: MemoryLedger) -> dict[str, Any]:
    return {"lines": lines(ledger), **ledger.parts(), "model_flops": ledger.model_flops}


def test_gloos_copies_of_what_is_scattered_are_seen_for_a_moment():
    """On a CPU alone: whatever the next operation takes."""
    scatter = torch.ops.c10d._reduce_scatter_base_.default
    other = torch.ops.aten.add.Tensor
    for device, events in (("cpu", [1, -1]), ("meta", [])):
        model = nn.Linear(2, 2)
        ledger = MemoryLedger(model, torch.optim.SGD(model.parameters()), device)
        given = [torch.ones(3)]
        ledger.before(other, [])
        ledger.before(scatter, [])
        ledger.before(other, given)
        assert [sign for _, sign in ledger.log.events] == events
        ledger.before(other, [torch.ones(4, device=device)])
        assert len([entry for entry, sign in ledger.log.events if entry.bytes == 16]) <= 2


# --- parts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("persists, expected", [(None, 1), (False, 1), (True, 2)])
def test_of_a_sharded_weight_its_part_is_kept(persists, expected):
    weight: Any = nn.Parameter(torch.ones(4))
    assert kept_tensors(weight) == [weight]
    weight.ds_tensor = torch.ones(2)
    if persists is not None:
        weight.ds_persist = persists
    found = kept_tensors(weight)
    assert len(found) == expected and found[0] is weight.ds_tensor


def test_a_gathered_weight_is_a_copy():
    model = nn.Linear(2, 2, bias=False)
    weight: Any = model.weight
    weight.ds_tensor = torch.ones(2)
    log: Any = StorageLog("cpu")
    attribution = MemoryAttribution(model, torch.optim.SGD([nn.Parameter(torch.ones(1))]), log)
    attribution.record_arguments([weight, torch.ones(3)])
    assert [entry.kind for entry, sign in log.events if sign > 0] == [COPY, OTHER]
    attribution.mark(weight, PARAMETER)
    attribution.record_arguments([weight])
    assert log.entry_of(weight).kind == PARAMETER
    plain: Any = MemoryAttribution(nn.Linear(2, 2), torch.optim.SGD([nn.Parameter(torch.ones(1))]), StorageLog("cpu"))
    plain.record_arguments([weight])
    assert plain.log.entry_of(weight).kind == OTHER


def test_weights_and_gradients_of_the_optimizer_alone_are_copies_and_gradients():
    """ZeRO's flat copies: no weights of the model."""
    model, flat = nn.Linear(2, 2, bias=False), nn.Parameter(torch.ones(8))
    flat.grad = torch.ones(8)
    log: Any = StorageLog("cpu")
    MemoryAttribution(model, torch.optim.SGD([flat]), log).mark_model_and_optimizer()
    kinds = [log.entry_of(one).kind for one in (flat, flat.grad, model.weight)]
    assert kinds == [COPY, GRADIENT, PARAMETER]


def test_phases_follow_one_another(monkeypatch):
    from legroom.measure import storage_log

    phase, task = StepPhase(), SimpleNamespace(now=-1)
    monkeypatch.setattr(storage_log, "current_graph_task_id", lambda: task.now)
    seen = [phase.current()]
    task.now = 0
    phase.begin_forward()  # checkpointing computes again
    seen.append(phase.current())
    phase.updates_weight = True
    seen.append(phase.current())
    phase.updates_weight = False
    seen.append(phase.current())
    task.now = -1
    seen += [phase.current(), phase.current()]
    phase.begin_forward()
    seen.append(phase.current())
    assert seen == ["forward", "backward", "step", "backward", "step", "step", "forward"]


def test_the_module_is_the_innermost_that_runs_and_none_in_the_optimizers_step():
    model = Net()
    log = StorageLog("cpu")
    origins = TensorOrigins(model, adam(model), log)
    origins._leave_module()  # of a replica in another thread
    assert origins.module == "" and origins[1234] == ""
    with origins.recording():
        seen = []
        model.first.up.register_forward_pre_hook(lambda *_: seen.append(origins.module))
        model.second.register_forward_pre_hook(lambda *_: seen.append(origins.module))
        nn.Sequential(model)(torch.ones(1, 4))
        log.phase.latest = "step"
        assert origins.module == ""
    assert seen == ["first.up", "second"]
    model(torch.ones(1, 4))
    assert origins.module == "" and not origins._modules, "no hook is left"


class Own(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return torch.ones(2)


class Carries(torch.Tensor):
    """Of attributes alone."""


@pytest.mark.parametrize(
    "types, own",
    [
        ([torch.Tensor, nn.Parameter], False),
        ([], False),
        ([Carries], False),
        ([Own], True),
        ([torch.Tensor, Carries, Own], True),
    ],
)
def test_a_subclass_may_have_a_dispatch_of_its_own(types, own):
    assert have_own_dispatch(types) is own


def test_a_mode_tells_its_observer_of_everything_and_runs_without_one():
    told = []

    class Observer:
        def before(self, func, tensors):
            told.append(("before", len(tensors)))

        def after(self, func, args, kwargs, result, signature):
            told.append(("after", result.sum().item(), signature))

        def on_subclass(self, func):
            told.append(("subclass",))

    @contextlib.contextmanager
    def around():
        told.append("in")
        yield
        told.append("out")

    out = torch.zeros(2)
    with OpObserverMode(Observer(), around) as mode:
        torch.add(torch.ones(2), torch.ones(2), out=out)
        assert torch.add(torch.Tensor._make_subclass(Own, torch.ones(2)), 1).tolist() == [1, 1]
        mode.observer = None
        torch.add(torch.Tensor._make_subclass(Own, torch.ones(2)), 1)
        torch.add(out, out, out=out)
    assert told[:1] == ["in"] or told[0][0] == "before"
    assert ("before", 3) in told and ("after", 4.0, None) in told and told.count(("subclass",)) == 1
    assert told.count("in") == told.count("out") > 1 and out.tolist() == [4, 4]


def test_no_listener_is_left_after_a_step_that_fails():
    heard = []
    with pytest.raises(KeyError), outside_autograd.observed_by(heard.append, lambda _: contextlib.nullcontext()):
        outside_autograd.keeps(torch.ones(1))
        raise KeyError
    outside_autograd.keeps(torch.ones(2))
    assert [one.numel() for one in heard] == [1]
