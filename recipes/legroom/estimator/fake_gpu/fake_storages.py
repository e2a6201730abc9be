"""Storages that have a size and no memory, and the tensors on them."""

import itertools
from typing import Any

import torch

from legroom.compat.torch_backend_private import create_empty_backend_tensor, dispatch_keys, storage_at_address

DEVICE_TYPE = "fakecuda"
FIRST_ADDRESS = 2**60  # no machine has memory at this address or above
ADDRESS_STEP = 512  # bytes between the addresses of two storages: FSDP compares tensors by their addresses
CPU_KEYS = dispatch_keys("CPU")  # the CPU's kernels for views touch no data

# As they are before `replaced_storage_sizes`.
real_nbytes = torch.UntypedStorage.nbytes
real_resize = torch.UntypedStorage.resize_

_set_storage = torch.ops.aten.set_.source_Storage_storage_offset.redispatch
_as_strided = torch.ops.aten.as_strided.default.redispatch
_addresses = itertools.count(FIRST_ADDRESS, ADDRESS_STEP)


def empty(size: Any, stride: Any, dtype: torch.dtype, size_bytes: int, device: torch.device) -> torch.Tensor:
    """A tensor with a fake storage of `size_bytes`. device: the fake GPU, or the CPU."""
    tensor = _of_no_elements(dtype, device.type == "cpu")
    storage = storage_at_address(next(_addresses), tensor.device, size_bytes)
    return _set_storage(CPU_KEYS, tensor, storage, 0, size, stride)


def _of_no_elements(dtype: torch.dtype, on_cpu: bool) -> torch.Tensor:
    if on_cpu:
        return torch.empty(0, dtype=dtype)
    return create_empty_backend_tensor([0], dtype)


def view(
    tensor: torch.Tensor, size: Any, stride: Any, storage_offset: int, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """A view of a fake tensor, by the CPU's kernel on either device. dtype: another one, as of view_as_complex."""
    if dtype is not None and dtype != tensor.dtype:
        cast = _of_no_elements(dtype, tensor.is_cpu)
        return _set_storage(CPU_KEYS, cast, tensor.untyped_storage(), storage_offset, size, stride)
    return _as_strided(CPU_KEYS, tensor, size, stride, storage_offset)


def lay_out(tensor: torch.Tensor, size: Any, stride: Any, storage_offset: int) -> torch.Tensor:
    """A fake tensor itself, with other sizes on the same storage."""
    return _set_storage(CPU_KEYS, tensor, tensor.untyped_storage(), storage_offset, size, stride)


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no memory: it is on the fake GPU, or on the CPU with a fake storage."""
    if not tensor.is_cpu:
        return True
    if tensor.layout is not torch.strided or not tensor.numel():  # a sparse tensor of the host has no storage to ask
        return False
    return tensor.untyped_storage().data_ptr() >= FIRST_ADDRESS


# torch cannot resize a storage of a Python backend. A fake storage has no memory, so only the size that it reports
# changes. FSDP resizes the storages of gathered parameters.


def nbytes(storage: torch.UntypedStorage) -> int:
    """The size of any storage: the last one that `resize` set, or the real one."""
    if "resized_bytes" in storage.__dict__:
        return storage.__dict__["resized_bytes"]
    return real_nbytes(storage)


def resize(storage: torch.UntypedStorage, size_bytes: int) -> Any:
    """Resize any storage; one of the fake GPU by name only."""
    if storage.device.type != DEVICE_TYPE:
        return real_resize(storage, size_bytes)
    storage.resized_bytes = size_bytes  # type: ignore[attr-defined]  # an attribute of our own, read by `nbytes`
    return storage
