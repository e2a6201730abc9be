"""An operation by the shapes of its arguments: what it gives, found once on torch's meta device."""

from __future__ import annotations

import torch

NEW, GIVEN, VIEW, PLAIN = range(4)  # what a result is: a new tensor, an argument, a view of one, or no tensor
nbytes = torch.UntypedStorage.nbytes  # the storage's own word, whatever is put in its place later


def sign(value, tensors: list):
    """What an operation's result can depend on, hashable. Appends every tensor it comes by to `tensors`."""
    kind = type(value)
    if kind is int or kind is float or kind is bool:  # 1, 1.0 and True are equal, and do not mean the same
        return kind, value
    if kind is list or kind is tuple:
        return tuple([sign(item, tensors) for item in value])
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return value.shape, value.stride(), value.dtype, value.storage_offset(), value.is_cpu
    return value if isinstance(value, (str, torch.dtype, torch.device, torch.layout, torch.memory_format)) else None


def meta(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_meta:
        return tensor
    needed = tensor.storage_offset() + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())) + 1
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
