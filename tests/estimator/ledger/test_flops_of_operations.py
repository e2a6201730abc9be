"""FLOPs of single operations, of their gradients, and the share that a kernel of attention computes, by hand."""

from __future__ import annotations

import pytest
import torch

from legroom.estimator.ledger.op_flops import (
    attended_share,
    backward_flops,
    has_flop_formula,
    operation_flops,
    tensors_in,
)

aten = torch.ops.aten


def of(*shape, grad=False, dtype=torch.float32):
    return torch.empty(shape, device="meta", requires_grad=bool(grad), dtype=dtype)


def heads(query=(2, 4, 8, 16), key=(2, 4, 6, 16), value=(2, 4, 6, 12)):
    return of(*query), of(*key), of(*value)


Q, K, V = heads()
SHARED = heads(key=(2, 2, 6, 16), value=(2, 2, 6, 12))  # two heads of queries to a head of keys
FORWARD = 2 * 2 * 4 * (8 * 16 * 6 + 8 * 6 * 12)  # scores, and what they make of the values
BACKWARD = 2 * 2 * 4 * (8 * 16 * 6 * 3 + 8 * 6 * 12 * 2)  # scores anew, and four products
ROWS = torch.tensor([0, 3, 5, 8]), torch.tensor([0, 2, 4, 6])  # of three rows, as long as 4 and 3
FLAT = of(8, 4, 16), of(6, 4, 16), of(6, 4, 12)
LONGEST = 2 * 3 * 4 * (4 * 16 * 3 + 4 * 3 * 12)
LONGEST_BACK = 2 * 3 * 4 * (4 * 16 * 3 * 3 + 4 * 3 * 12 * 2)


def turned(*tensors):
    return [tensor.transpose(1, 2) for tensor in tensors]


@pytest.mark.parametrize(
    "func, args, expected",
    [
        (aten.mm.default, (of(3, 5), of(5, 7)), 2 * 3 * 5 * 7),
        (aten.addmm.default, (of(7), of(3, 5), of(5, 7)), 2 * 3 * 5 * 7),
        (aten.addmm.dtype, (of(7), of(3, 5), of(5, 7), torch.float32), 2 * 3 * 5 * 7),
        (aten.bmm.default, (of(2, 3, 5), of(2, 5, 7)), 2 * 2 * 3 * 5 * 7),
        (aten.linear.default, (of(2, 3, 5), of(7, 5)), 2 * 2 * 3 * 5 * 7),
        (aten.add.Tensor, (of(3), of(3)), 0),
        (aten._scaled_dot_product_efficient_attention.default, (Q, K, V, None, True), FORWARD),
        (aten._scaled_dot_product_flash_attention.default, (Q, K, V), FORWARD),
        (aten._scaled_dot_product_flash_attention_for_cpu.default, SHARED, FORWARD),
        (aten._scaled_dot_product_flash_attention_backward.default, (of(2, 4, 8, 12), *SHARED), BACKWARD),
        (aten._flash_attention_forward.default, (*turned(Q, K, V), None, None, 8, 6), FORWARD),
        (aten._flash_attention_backward.default, (*turned(of(2, 4, 8, 12), Q, K, V), None, None), BACKWARD),
        (aten._flash_attention_forward.default, (*FLAT, *ROWS, 4, 3), LONGEST),
        (aten._flash_attention_backward.default, (of(8, 4, 12), *FLAT, None, None, *ROWS, 4, 3), LONGEST_BACK),
    ],
    ids=lambda value: str(value) if isinstance(value, torch._ops.OpOverload) else "",
)
def test_flops_of_an_operation(func, args, expected):
    assert operation_flops(func, args, {}, None) == expected


@pytest.mark.parametrize("trained", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_a_factor_that_is_trained_has_as_many_again(trained):
    first, second = of(3, 5, grad=trained[0]), of(5, 7, grad=trained[1])
    assert backward_flops(aten.mm.default, (first, second), 100) == 100 * sum(trained)
    added = (of(3, 7, grad=True), first, second)
    assert backward_flops(aten.addmm.default, added, 100) == 100 * sum(trained)
    batched = (of(2, 3, 7, grad=True), of(2, 3, 5, grad=trained[0]), of(2, 5, 7, grad=trained[1]))
    assert backward_flops(aten.baddbmm.default, batched, 100) == 100 * sum(trained)
    assert backward_flops(aten.mm.default, (first, second, of(1, grad=True)), 100) == 100 * sum(trained)


@pytest.mark.parametrize(
    "trained, products",
    [
        ((1, 1, 1), 4),
        ((1, 1, 0), 3),
        ((1, 0, 0), 2),  # the probabilities, and the queries
        ((0, 1, 0), 2),
        ((0, 0, 1), 1),
        ((0, 1, 1), 3),
        ((0, 0, 0), 0),
    ],
)
def test_attention_has_two_products_forward_and_up_to_four_backward(trained, products):
    args = [of(2, 4, 8, 16, grad=each) for each in trained]
    for func in (aten._scaled_dot_product_flash_attention.default, aten._flash_attention_forward.default):
        assert backward_flops(func, args, 100) == 50 * products


def test_what_has_a_formula_is_known():
    assert has_flop_formula(aten.mm.default) and not has_flop_formula(aten.add.Tensor)


PACKAGE = aten._flash_attention_forward.default


@pytest.mark.parametrize(
    "length, window, causal, seen",
    [
        (6, -1, True, None),
        (6, -1, False, None),
        (6, 6, True, None),  # no narrower than the row
        (6, 6, False, None),
        (6, 5, True, 21),  # all of the lower half
        (6, 2, True, 1 + 2 + 3 + 3 + 3 + 3),
        (6, 2, False, 3 + 4 + 5 + 5 + 4 + 3),
        (6, 0, True, 6),  # its own alone
        (6, 0, False, 6),
    ],
)
def test_a_window_leaves_out_what_lies_before_it(length, window, causal, seen):
    sizes = turned(of(2, 4, length, 16), of(2, 4, length, 16), of(2, 4, length, 16))
    args = (*sizes, None, None, length, length, 0.0, causal, False)
    share = attended_share(PACKAGE, args, {"window_size_left": window, "window_size_right": 0 if causal else window})
    assert share == pytest.approx((0.5 if causal else 1.0) if seen is None else seen / length**2)


@pytest.mark.parametrize("causal", [False, True])
def test_a_kernel_without_windows_leaves_out_half_if_it_is_causal(causal):
    share = 0.5 if causal else 1.0
    func = aten._scaled_dot_product_flash_attention.default
    assert attended_share(func, (Q, Q, Q, 0.0, causal), {}) == share
    assert attended_share(func, (Q, Q, Q), {"is_causal": causal}) == share
    assert attended_share(PACKAGE, (Q, Q, Q, None, None, 8, 8, 0.0, causal), {}) == share, "no window is given"
    assert attended_share(aten.mm.default, (Q, Q), {}) == 1.0


def test_tensors_are_found_in_lists_and_dictionaries():
    a, b, c, d = (of(1) for _ in range(4))
    found = tensors_in([a, 1, [b, (None, c)], {"x": d, "y": [a]}, "text", {b}])
    assert [id(one) for one in found] == [id(one) for one in (a, b, c, d, a)]
