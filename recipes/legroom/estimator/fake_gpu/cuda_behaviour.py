"""Autocast, attention and softmax on the fake GPU: torch treats CUDA differently there, and the fake GPU like CUDA."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from legroom.compat.torch_backend_private import registered_kernels, replaced_storage_sizes
from legroom.estimator.fake_gpu import attention, autocast, fake_storages

aten = torch.ops.aten


@contextlib.contextmanager
def as_cuda(capability: tuple[int, int]) -> Iterator[None]:
    """Inside, operations on the fake GPU are split into the kernels that CUDA would run. capability: of the GPU."""
    kernels: dict[str, Callable] = {
        "scaled_dot_product_attention": functools.partial(attention.attend, capability=capability),
        "softmax.int": functools.partial(_softmax, aten._softmax),
        "log_softmax.int": functools.partial(_softmax, aten._log_softmax),
    }
    with (
        autocast.cuda_autocast(fake_storages.DEVICE_TYPE),
        replaced_storage_sizes(fake_storages.nbytes, fake_storages.resize),
        registered_kernels("AutogradPrivateUse1", kernels),
    ):
        yield


def _softmax(run: Callable, tensor: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    """aten/src/ATen/native/SoftMax.cpp: on CUDA one kernel goes from fp16 to fp32; any other dtype is cast first."""
    if tensor.dtype == torch.float16 and dtype == torch.float32:
        return run(tensor, dim, True)
    return run(tensor if dtype is None else tensor.to(dtype), dim, False)
