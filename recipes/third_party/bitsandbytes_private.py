"""Undocumented names of bitsandbytes that this project uses or replaces, each with its reason. Imports bitsandbytes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from bitsandbytes import functional
from bitsandbytes.optim.optimizer import GlobalOptimManager

from recipes.third_party.patching import patched


def clear_overrides() -> None:
    """Forgets which weights keep 32-bit states. bitsandbytes identifies a weight by its id, which a weight of this
    model may share with a weight of an earlier model in the process."""
    GlobalOptimManager.get_instance().initialize()


def state_buffer(optimizer: Any, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An optimizer state of a weight, filled with zeros; in paged memory where the optimizer would page it."""
    return optimizer.get_state_buffer(weight, dtype=dtype)


@contextlib.contextmanager
def own_code_tables() -> Iterator[None]:
    """Inside, the table of 8-bit codes that bitsandbytes keeps for the process is another one.

    It moves that table to the first device that asks for it, which would be a device without memory.
    """
    with patched(functional, name2qmap={"dynamic": functional.create_dynamic_map()}):
        yield


@contextlib.contextmanager
def replaced_paged_memory(get_paged: Callable[..., Any]) -> Iterator[None]:
    """Inside, paged optimizer states are made by `get_paged(*shape, dtype=, device=)`, not filled and not prefetched.

    bitsandbytes takes their memory from CUDA itself (cudaMallocManaged), below torch.
    """

    def skip(*_: Any, **__: Any) -> None:
        pass

    with patched(functional, get_paged=get_paged, fill=skip, prefetch_tensor=skip):
        yield
