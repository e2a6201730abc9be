"""Operations of aten, classified on tensors without data: work, bytes, kernels and shape of each, as kept values."""

from __future__ import annotations

import torch
from test_roofline import call_key, meta

from legroom.foresight.speed import operations
from legroom.foresight.speed.operations import Operation, Tally

aten, half = torch.ops.aten, torch.bfloat16


def test_a_copy_between_host_and_device_moves_what_arrives():
    host, device = torch.zeros(4, 9), meta(4, 9, dtype=half)
    to_host = operations.classify(aten.copy_.default, (host, device), host)
    to_device = operations.classify(aten.copy_.default, (device, host), device)
    assert to_host is not None and to_host.elements == 36
    assert to_host == Operation("copy", "host copy", bytes=144)
    assert to_device == Operation("copy", "host copy", bytes=72)
    mixed = operations.classify(aten.add.Tensor, (device, torch.ones(())), device)
    assert mixed is not None and mixed.kind == "elementwise", "a number from the host is no copy"


def test_a_tally_counts_calls_operations_and_places():
    tally, again, args = Tally(), Tally(), (meta(4), meta(4))
    again.seen = tally.seen
    for phase, caller, module in (("forward", "", "a"), ("backward", "forward", "a"), ("backward", "", None)):
        tally.add(aten.add.Tensor, args, {}, meta(4), phase, call_key(aten.add.Tensor, args), caller, module)
    view = (meta(4, 2),)
    tally.add(aten.t.default, view, {}, meta(2, 4), "step", call_key(aten.t.default, view))
    ((added, _),) = tally.counts["forward"].items()
    assert tally.calls == {"forward": 2, "backward": 1, "step": 1} and "step" not in tally.counts
    assert tally.counts == {"forward": {added: 1}, "backward": {added: 2}}
    assert tally.places == {"forward": {("a", added): 1}, "backward": {("a", added): 1}} and not tally.unknown
    again.add(aten.add.Tensor, args, {}, meta(4), "step", call_key(aten.add.Tensor, args))
    assert list(again.counts["step"])[0] is added, "classified once for all tallies"
    tally.put(added, "step", 3)
    tally.put(added, "forward")
    assert sorted(times for _, times in tally.operations()) == [2, 2, 3] and tally.calls["step"] == 4
