"""What the ledger says of each storage of small steps: its part, its phase and what made it, as kept."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn

from legroom.measure import outside_autograd
from legroom.measure.memory_attribution import COPY, GRADIENT, OTHER, PARAMETER, MemoryAttribution, kept_tensors
from legroom.measure.memory_ledger import MemoryLedger
from legroom.measure.op_observer import OpObserverMode, have_own_dispatch
from legroom.measure.storage_log import StorageLog


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


def test_weights_of_the_optimizer_alone_are_copies():
    """ZeRO's flat copies: no weights of the model."""
    model, flat = nn.Linear(2, 2, bias=False), nn.Parameter(torch.ones(8))
    flat.grad = torch.ones(8)
    log: Any = StorageLog("cpu")
    MemoryAttribution(model, torch.optim.SGD([flat]), log).mark_model_and_optimizer()
    kinds = [log.entry_of(one).kind for one in (flat, flat.grad, model.weight)]
    assert kinds == [COPY, GRADIENT, PARAMETER]


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
