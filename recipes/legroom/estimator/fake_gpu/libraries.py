"""Accelerate, bitsandbytes and packages of attention kernels on the fake device.

These libraries ask for a real GPU before they do their work. Everything here is undone afterwards.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import accelerate
import torch
import torch.distributed as dist

from legroom.compat import accelerate_private, torch_private, transformers_models_private
from legroom.compat.patching import patched
from legroom.estimator.fake_gpu import attention, fake_storages
from legroom.estimator.fake_gpu.device import FakeDevice
from legroom.machine import host, imports
from legroom.ranks import collectives


class FakeAccelerator(accelerate.Accelerator):
    """An Accelerator that sets itself up as for CUDA, and then uses `device`."""

    fake_device: torch.device

    def __init__(self, **settings: Any):
        accelerate_private.set_process_device(torch.device("cuda"))
        if collectives.is_distributed():
            accelerate_private.set_process_multi_gpu(dist.get_world_size())
        settings["cpu"] = False
        super().__init__(**settings)
        accelerate_private.set_accelerator_device(self.fake_device)
        if self.scaler is not None:
            self.scaler = torch_private.UncheckedGradScaler(self.fake_device.type)


@contextlib.contextmanager
def libraries_on(fake: FakeDevice, bitsandbytes: bool = True, flash_attention: str | None = None) -> Iterator[None]:
    """Inside, `accelerate.Accelerator` uses the fake device, and bitsandbytes makes paged states without CUDA.

    bitsandbytes: whether the step may use it, which takes a second to import; it is left out where it is not installed.
    flash_attention: transformers' name of a kernel whose package need not be installed.
    """
    with contextlib.ExitStack() as patches:
        if bitsandbytes and host.has("bitsandbytes"):
            with imports.without_collecting(), without_compiler():
                from legroom.compat import bitsandbytes_private

            patches.enter_context(bitsandbytes_private.own_code_tables())
            patches.enter_context(bitsandbytes_private.replaced_paged_memory(paged_state))
        if flash_attention is not None:
            kernels = transformers_models_private.replaced_attention(flash_attention, attention.of_package)
            patches.enter_context(kernels)
        if fake.capability is not None:
            accelerator = type("Accelerator", (FakeAccelerator,), {"fake_device": fake.device})
            patches.enter_context(accelerate_private.replaced_accelerator(accelerator))
        yield


def without_compiler() -> contextlib.AbstractContextManager[None]:
    """Inside, torch.compile(function) is the function as it is.

    bitsandbytes wraps three of its kernels for CPUs in it as it is imported. That imports Inductor, which takes most of
    a second; on the fake device no such kernel runs.
    """

    def as_written(function: Any, **_: Any) -> Any:
        return function

    return patched(torch, compile=as_written)


def paged_state(*shape: int, dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
    """A paged optimizer state: managed memory that the driver moves between host and GPU, outside torch's allocator."""
    stride = torch.empty(shape, device="meta").stride()
    state = fake_storages.empty(shape, stride, dtype, math.prod(shape) * dtype.itemsize, torch.device("cpu"))
    state.is_paged = True  # type: ignore[attr-defined]  # bitsandbytes sets this attribute, and the ledger reads it
    return state
