"""Behaviour of torch 1.10 that later versions changed, for predictions of runs that were published in January 2022."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer, adam

from recipes.third_party.patching import patched


@contextlib.contextmanager
def softmax_replaced(softmax: Callable[..., torch.Tensor]) -> Iterator[None]:
    """Inside, `torch.nn.functional.softmax` is another function; eager attention in transformers calls it."""
    with patched(torch.nn.functional, softmax=softmax):
        yield


@contextlib.contextmanager
def gradients_kept_as_zeros() -> Iterator[None]:
    """Inside, `Optimizer.zero_grad()` writes zeros, the default until torch 2.0, whatever `set_to_none` is given."""
    zero_grad = Optimizer.zero_grad

    def zeros(self: Optimizer, set_to_none: bool = False) -> None:
        zero_grad(self, False)

    with patched(Optimizer, zero_grad=zeros):
        yield


@contextlib.contextmanager
def adam_without_foreach() -> Iterator[None]:
    """Inside, Adam and AdamW that are given neither `foreach` nor `fused` update one parameter after the other.

    torch/optim/adam.py asks `_default_to_fused_or_foreach` which implementation to take; AdamW is a subclass of Adam.
    """

    def for_loop(*_: Any, **__: Any) -> tuple[bool, bool]:
        return False, False  # (fused, foreach)

    with patched(adam, _default_to_fused_or_foreach=for_loop):
        yield
