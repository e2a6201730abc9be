"""An operation by the shapes of its arguments: what it gives, found once on torch's meta device."""

from __future__ import annotations

import torch

NEW, GIVEN, VIEW, PLAIN = range(4)  # what a result is: a new tensor, an argument, a view of one, or no tensor
READ, SEND = ("read",), ("send",)  # no result to plan: a number is read, or ranks exchange something
PLAIN_VALUES = (str, torch.dtype, torch.device, torch.layout, torch.memory_format)
nbytes = torch.UntypedStorage.nbytes  # the storage's own word, whatever is put in its place later


def signed(func, args, kwargs) -> tuple[tuple, list[torch.Tensor]]:
    """(what tells a call from others with different results, its tensors)."""
    tensors: list[torch.Tensor] = []
    # A function is told by its identity: it lives as long as torch, and torch's own hash of one takes longer.
    return (id(func), sign(args, tensors), sign(kwargs.items(), tensors) if kwargs else ()), tensors


def sign(values, tensors: list) -> tuple:
    """What an operation's result can depend on, hashable. Appends every tensor among values to `tensors`."""
    parts = []
    for value in values:
        kind = type(value)
        if kind is int:
            parts.append(value)
        elif isinstance(value, torch.Tensor):
            tensors.append(value)
            parts.append((value.shape, value.stride(), value.dtype, value.storage_offset(), value.is_cpu))
        elif kind is list or kind is tuple:
            parts.append(sign(value, tensors))
        elif kind is float or kind is bool:  # 1.0 and True equal 1, and do not mean the same
            parts.append((kind, value))
        else:
            parts.append(value if isinstance(value, PLAIN_VALUES) else None)
    return tuple(parts)


def meta(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_meta:
        return tensor
    needed = (
        tensor.storage_offset() + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())) + 1
    )
    held = nbytes(tensor.untyped_storage()) // tensor.element_size()
    whole = torch.empty(max(held, needed), dtype=tensor.dtype, device="meta")
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def swap(value, metas: dict):
    if isinstance(value, torch.Tensor):
        return metas[id(value)]
    if isinstance(value, (list, tuple)):
        return type(value)([swap(item, metas) for item in value])
    return value


def describe(result, places: dict[int, int], storages: dict[int, int]):
    """A result as `FakeDevice.carry_out` reads it. places, storages: which argument a meta tensor or storage is of."""
    if isinstance(result, (list, tuple)):
        kind = tuple if isinstance(result, tuple) else list
        return kind, *[describe(item, places, storages) for item in result]
    if not isinstance(result, torch.Tensor):
        return PLAIN, result
    if id(result) in places:
        return GIVEN, places[id(result)]
    known = storages.get(result.untyped_storage()._cdata)
    if known is not None:
        return VIEW, known, result.shape, result.stride(), result.storage_offset()
    return NEW, result.shape, result.stride(), result.dtype, result.untyped_storage().nbytes()
