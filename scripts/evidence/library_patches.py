"""Private names of torch and transformers that our tools alone use: older versions, the allocator's history."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim import adam as _adam  # type: ignore[attr-defined]  (a module, missing in torch's stubs)
from transformers.cache_utils import DynamicLayer

from legroom.compat.patching import patched


@contextlib.contextmanager
def gradients_kept_as_zeros() -> Iterator[None]:
    """Inside, `Optimizer.zero_grad()` writes zeros, the default until torch 2.0, whatever `set_to_none` is given.

    For predictions of published runs with an older torch.
    """
    zero_grad = Optimizer.zero_grad

    def zeros(self: Optimizer, set_to_none: bool = False) -> None:
        zero_grad(self, False)

    with patched(Optimizer, zero_grad=zeros):
        yield


@contextlib.contextmanager
def adam_without_foreach() -> Iterator[None]:
    """Inside, Adam and AdamW that are given neither `foreach` nor `fused` update one parameter after the other.

    So did torch 1.10. torch/optim/adam.py asks `_default_to_fused_or_foreach` which implementation to take; AdamW is
    a subclass of Adam.
    """

    def for_loop(*_: Any, **__: Any) -> tuple[bool, bool]:
        return False, False  # (fused, foreach)

    with patched(_adam, _default_to_fused_or_foreach=for_loop):
        yield


@contextlib.contextmanager
def softmax_replaced(softmax: Callable[..., torch.Tensor]) -> Iterator[None]:
    """Inside, `torch.nn.functional.softmax` is another function; eager attention in transformers calls it."""
    with patched(torch.nn.functional, softmax=softmax):
        yield


@contextlib.contextmanager
def cache_without_first_copy() -> Iterator[None]:
    """Inside, a cache keeps the first keys and values as they are; transformers 5 concatenates them to empty tensors.

    Source: transformers 4.51.3, cache_utils.py, DynamicCache.update. For caches that are used once.
    """

    def update(
        layer: DynamicLayer, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        layer.keys, layer.values, layer.is_initialized = keys, values, True
        layer.dtype, layer.device = keys.dtype, keys.device
        return keys, values

    with patched(DynamicLayer, update=update):
        yield


# torch's documentation shows how to record what CUDA's caching allocator is asked, with these private functions.


def start_allocator_history(max_entries: int) -> None:
    """Keep the last `max_entries` requests of the allocator, without the stack of each."""
    torch.cuda.memory._record_memory_history(max_entries=max_entries, stacks="python", context=None)


def allocator_history(device: int) -> list[dict[str, Any]]:
    """What was recorded for a device: entries with action, addr, size (bytes) and stream, oldest first."""
    snapshot: Any = torch.cuda.memory._snapshot()
    return snapshot["device_traces"][device]


def stop_allocator_history() -> None:
    """Record no further requests."""
    torch.cuda.memory._record_memory_history(enabled=None)
