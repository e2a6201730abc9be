"""FLOPs of one operation, and the tensors among its arguments."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from legroom.compat.torch_private import op_packet, qualified_packet_name, schema

WITH_ADDEND = ("aten::addmm", "aten::baddbmm", "aten::_addmm_activation")  # whose first argument is added

# Whole scores are counted, also where a causal kernel or one with a window leaves some out.
ATTENTION = ("aten::_scaled_dot_product", "aten::_flash_attention")

# Products of activations (..., K), the first argument, with a weight (N, K) -> the weight's argument. torch has no
# formula for them: a linear layer is other operations by then, but for one with quantised weights.
LINEAR_PRODUCTS = {"aten::linear": 1, "bitsandbytes::int8_mixed_scaled_mm": 2}


def has_flop_formula(func: Any) -> bool:
    """Whether torch has a formula for the operation. func: an OpOverload."""
    return op_packet(func) in flop_registry


def operation_flops(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    """FLOPs of one operation by torch's own formulas; 0 for operations that torch does not count (element-wise work).

    func: an OpOverload. Raises AssertionError, TypeError or ValueError if the formula does not accept these shapes.
    """
    packet = op_packet(func)
    if qualified_packet_name(packet).startswith(ATTENTION):
        # One rule for every attention kernel: torch's table lacks the CPU's, and before 2.13 refuses query heads that
        # share keys and values. The work is that of as many heads as the queries have.
        backward = "backward" in packet.__name__  # its first argument is the gradient of the result
        shapes = [tuple(tensor.shape) for tensor in (args[:4] if backward else args[:3])]
        if len(shapes[-1]) == 3:  # (all tokens, H, D): as if all rows were as long as the longest
            begins, longest = (args[6:8], args[8:10]) if backward else (args[3:5], args[5:7])
            rows = [(len(one) - 1, length) for one, length in zip(begins, longest)]
            shapes = [(*row, *shape[1:]) for row, shape in zip([rows[0]] * (len(shapes) - 2) + [rows[1]] * 2, shapes)]
        if qualified_packet_name(packet).startswith("aten::_flash"):  # (B, T, H, D)
            shapes = [(batch, heads, length, size) for batch, length, heads, size in shapes]
        query, key, value = shapes[-3:]
        heads = query[1]
        shapes[-2:] = (key[0], heads, *key[2:]), (value[0], heads, *value[2:])
        return sdpa_backward_flop_count(*shapes) if backward else sdpa_flop_count(*shapes)
    if qualified_packet_name(packet) in LINEAR_PRODUCTS:
        return 2 * args[0].numel() * args[LINEAR_PRODUCTS[qualified_packet_name(packet)]].shape[0]
    formula = flop_registry.get(packet)
    shaped = [value for value in args if not isinstance(value, torch.dtype)]  # addmm.dtype has one of its result
    return formula(*shaped, **kwargs, out_val=result) if formula else 0


def backward_flops(func: Any, args: Any, flops: int) -> int:
    """FLOPs of the gradients of an operation's factors: as many as `flops`, its own, for each that requires one.

    A frozen weight has none, and an activation below the first trainable weight has none either.
    """
    name = qualified_packet_name(op_packet(func))
    if name.startswith(ATTENTION):
        # Two products forward, four backward: for the values, the probabilities, the queries and the keys.
        query, key, value = (tensor.requires_grad for tensor in args[:3])
        return flops * (value + (query or key) + query + key) // 2
    factors = args[1:3] if name in WITH_ADDEND else args[:2]
    return flops * sum(factor.requires_grad for factor in factors)


def attended_share(func: Any, args: Sequence, kwargs: Mapping) -> float:
    """The share of the scores that a kernel of attention computes: half if it is causal, and those within a window."""
    given = dict(zip([argument.name for argument in schema(func).arguments], args)) | dict(kwargs)
    causal, window, length = (given.get(name) for name in ("is_causal", "window_size_left", "max_q"))
    if window is None or length is None or not 0 <= window < length:
        return 0.5 if causal else 1.0
    before = window * (length - (window + 1) / 2)  # of all queries, keys before their own
    return (length + before * (1 if causal else 2)) / length**2


def tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """Every tensor among `values`, and in the lists, tuples and dictionaries among them."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(value)
        elif isinstance(value, dict):
            found += tensors_in(value.values())
    return found
