"""Operations of aten, classified on tensors without data: work, bytes, kernels and shape of each, as kept values."""

from __future__ import annotations

import torch
from support.known_values import known
from test_roofline import call_key, meta

from legroom.foresight.speed import operations
from legroom.foresight.speed.operations import Operation, Tally

aten, half = torch.ops.aten, torch.bfloat16
LONG = torch.long


def cases():
    """(function, arguments, keywords)."""
    norm = ([8], meta(8), meta(8), 1e-5)
    rows, moments = (meta(2, 3, 8), meta(2, 3, 8)), (meta(2, 3, 1), meta(2, 3, 1))
    images, steps = (meta(2, 8, 9, 9, dtype=half), meta(4, 8, 3, 3, dtype=half)), [meta(()) for _ in range(37)]
    adamw = dict(lr=1.0, beta1=0.9, beta2=0.9, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False)
    many = [meta(70_000) for _ in range(130)]
    yield from [
        (aten.mm.default, (meta(4, 8), meta(8, 16)), {}),
        (aten.mm.default, (meta(0, 8), meta(8, 16)), {}),
        (aten.bmm.default, (meta(3, 4, 8, dtype=half), meta(3, 8, 16, dtype=half)), {}),
        (aten.addmm.default, (meta(16, dtype=torch.float16), *(meta(16, 16, dtype=torch.float16) for _ in "ab")), {}),
        (aten.baddbmm.default, (meta(3, 4, 16), meta(3, 4, 8), meta(3, 8, 16)), {}),
        (aten.mm.default, (meta(4, 8, dtype=torch.float64), meta(8, 16, dtype=torch.float64)), {}),
        (aten.linear.default, (meta(2, 3, 8), meta(5, 8)), {}),
        (aten.convolution.default, (*images, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), {}),
        (aten.native_layer_norm.default, (meta(2, 3, 8), *norm), {}),
        (aten.native_layer_norm_backward.default, (*rows, [8], *moments, meta(8), meta(8), [True] * 3), {}),
        (aten._softmax.default, (meta(5, 0), -1, False), {}),
        (aten._log_softmax.default, (meta(4, 9, dtype=half), 1, False), {}),
        (aten._log_softmax_backward_data.default, (meta(4, 9), meta(4, 9), 1, torch.float32), {}),
        (aten.nll_loss_forward.default, (meta(4, 9), meta(4, dtype=LONG), None, 1, -100), {}),
        (aten.nll_loss_backward.default, (meta(()), meta(4, 9), meta(4, dtype=LONG), None, 1, -100, meta(())), {}),
        (aten.embedding.default, (meta(100, 8), meta(2, 5, dtype=LONG)), {}),
        (aten.embedding_dense_backward.default, (meta(2, 5, 8), meta(2, 5, dtype=LONG), 100, -1, False), {}),
        (aten.gather.default, (meta(4, 9), 1, meta(4, 2, dtype=LONG)), {}),
        (aten.index_select.default, (meta(9, 4), 0, meta(3, dtype=LONG)), {}),
        (aten.sum.dim_IntList, (meta(4, 9), [1]), {}),
        (aten.mean.default, (meta(4, 9),), {}),
        (aten.linalg_vector_norm.default, (meta(4, 9),), {}),
        (aten.add.Tensor, (meta(4, 9), meta(9)), {}),
        (aten.add.Tensor, (meta(4, 9), meta(9).expand(4, 9)), {}),
        (aten.add_.Tensor, (meta(4, 9, dtype=half), meta(4, 9)), {}),
        (aten.mul.Tensor, (meta(4, 9, dtype=torch.bool), meta(4, 9, dtype=LONG)), {}),
        (aten.add.out, (meta(4), meta(4)), {"out": meta(4)}),
        (aten.where.self, (meta(4, dtype=torch.bool), meta(4), meta(4)), {}),
        (aten.gelu.default, (meta(()),), {}),
        (aten.copy_.default, (meta(4, 9), meta(4, 9, dtype=half)), {}),
        (aten._to_copy.default, (meta(4, 9),), {"dtype": half}),
        (aten.fill_.Scalar, (meta(4, 9), 1.0), {}),
        (aten.bernoulli_.float, (meta(4, 9), 0.5), {}),
        (aten.cat.default, ([meta(4, 9), meta(2, 9)],), {}),
        (aten._foreach_add_.Scalar, (many, 1.0), {}),
        (aten._foreach_add.List, (many, many), {}),
        (aten._foreach_addcdiv_.Scalar, (many, many, many), {}),
        (aten._foreach_mul_.Scalar, ([meta(65536 * 320)], 2.0), {}),
        (aten._foreach_mul_.Scalar, ([meta(65536 * 320 + 1)], 2.0), {}),
        (aten._foreach_mul_.Scalar, ([meta(65536)] * 110, 2.0), {}),
        (aten._foreach_mul_.Scalar, ([meta(65536)] * 111, 2.0), {}),
        (aten._foreach_norm.Scalar, (many,), {}),
        (aten._foreach_copy_.default, (many, many), {}),
        (aten._foreach_zero_.default, (many,), {}),
        (aten._fused_adamw_.default, (*([*many[:37]] for _ in range(4)), [], steps), adamw),
        (aten.t.default, (meta(4, 9),), {}),
        (aten.detach.default, (meta(4, 9),), {}),
        (aten.empty_like.default, (meta(4, 9),), {}),
    ]  # fmt: skip


def test_the_work_of_each_operation(data_regression):
    """kind, dtype, FLOPs, bytes, kernels, shape, elements; None where the device has nothing to do."""
    lines = {}
    for number, (func, args, kwargs) in enumerate(cases()):
        found = operations.classify(func, args, func(*args, **kwargs), kwargs)
        text = "nothing"
        if found is not None:
            text = f"{found.name}: {found.kind} {found.dtype}, {found.flops} FLOPs, {found.bytes} bytes, "
            text += f"{found.kernels} kernels, {list(found.shape)}, {found.elements} elements"
        lines[f"{number} {func}"] = text
    data_regression.check(known(lines))


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


def test_collectives_that_move_nothing_are_no_work_and_others_are_told_from_element_wise_work():
    calls = {
        "barrier": (torch.ops.c10d.barrier.default, (meta(1), None, [0], True, 5)),
        "wait": (torch.ops._c10d_functional.wait_tensor.default, (meta(4),)),
        "gather": (torch.ops._c10d_functional.all_gather_into_tensor.default, (meta(4), 2, "nobody")),
    }
    kinds = {name: operations._class_of(func) for name, (func, _) in calls.items()}
    assert {name: found and found.kind for name, found in kinds.items()} == {
        "barrier": "",
        "wait": "",
        "gather": "collective",
    }
    assert operations._class_of(torch.ops.prim.device.default) is None
    custom = operations._class_of(aten.silu.default)
    assert custom is not None and custom.known and custom.written == ()
    assert operations._class_of(aten.add_.Tensor).written == (0,)  # pyright: ignore[reportOptionalMemberAccess]
