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
    name = qualified_packet_name(packet)
    if name.startswith(ATTENTION):
        return _attention_flops(name, args)
    if name in LINEAR_PRODUCTS:
        return 2 * args[0].numel() * args[LINEAR_PRODUCTS[name]].shape[0]
    formula = flop_registry.get(packet)
    if formula is None:
        return 0
    shaped = [value for value in args if not isinstance(value, torch.dtype)]  # addmm.dtype has one of its result
    return formula(*shaped, **kwargs, out_val=result)


def _attention_flops(name: str, args: Any) -> int:
    """One rule for every attention kernel: torch's table lacks the CPU's, and before 2.13 refuses query heads that
    share keys and values. The work is that of as many heads as the queries have."""
    is_backward = "backward" in name
    if is_backward:  # its first argument is the gradient of the result
        _, query, key, value = (tuple(tensor.shape) for tensor in args[:4])
        packed_rows = args[6:10]
    else:
        query, key, value = (tuple(tensor.shape) for tensor in args[:3])
        packed_rows = args[3:7]
    if len(value) == 3:  # (all tokens, H, D): as if all rows were as long as the longest
        query_begins, key_begins, queries, keys = packed_rows
        query = (len(query_begins) - 1, queries, *query[1:])
        key = (len(key_begins) - 1, keys, *key[1:])
        value = (len(key_begins) - 1, keys, *value[1:])
    if name.startswith("aten::_flash"):  # (B, T, H, D)
        query, key, value = (_heads_first(shape) for shape in (query, key, value))
    heads = query[1]
    key = (key[0], heads, *key[2:])
    value = (value[0], heads, *value[2:])
    if is_backward:
        gradient = (*query[:3], value[-1])
        return sdpa_backward_flop_count(gradient, query, key, value)
    return sdpa_flop_count(query, key, value)


def _heads_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    batch, length, heads, size = shape
    return batch, heads, length, size


def backward_flops(func: Any, args: Any, flops: int) -> int:
    """FLOPs of the gradients of an operation's factors: as many as `flops`, its own, for each that requires one.

    A frozen weight has none, and an activation below the first trainable weight has none either.
    """
    name = qualified_packet_name(op_packet(func))
    if name.startswith(ATTENTION):
        # Two products forward, four backward: for the values, the probabilities, the queries and the keys.
        query, key, value = (tensor.requires_grad for tensor in args[:3])
        return flops * (value + (query or key) + query + key) // 2
    factors = args[:2]
    if name in WITH_ADDEND:
        factors = args[1:3]
    return flops * sum(factor.requires_grad for factor in factors)


def attended_share(func: Any, args: Sequence, kwargs: Mapping) -> float:
    """The share of the scores that a kernel of attention computes: half if it is causal, and those within a window."""
    names = [argument.name for argument in schema(func).arguments]
    arguments = {**dict(zip(names, args)), **kwargs}
    is_causal = arguments.get("is_causal")
    window = arguments.get("window_size_left")
    length = arguments.get("max_q")
    if window is None or length is None or not 0 <= window < length:
        return 0.5 if is_causal else 1.0
    seen = window * (length - (window + 1) / 2)  # of all queries, keys before their own
    if not is_causal:
        seen *= 2  # and as many behind
    return (length + seen) / length**2


def tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """Every tensor among `values`, and in the lists, tuples and dictionaries among them."""
    tensors = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += tensors_in(value)
        elif isinstance(value, dict):
            tensors += tensors_in(value.values())
    return tensors
