"""What a step keeps or does where neither saved tensors nor the optimizer's hooks show it: a lever reports it here, and
the memory ledger listens."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

Kept = Callable[[torch.Tensor], Any]
Update = Callable[[torch.Tensor], AbstractContextManager]
_listeners: list[tuple[Kept, Update]] = []


@contextlib.contextmanager
def observed_by(kept: Kept, update: Update) -> Iterator[None]:
    """Inside, `kept` receives each tensor that is kept for the backward pass and that autograd does not save: results
    of operations, inputs of layers on the host. update(weight): a context around the update of one weight."""
    listener = kept, update
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def keeps(tensor: torch.Tensor) -> None:
    """A tensor is kept for the backward pass."""
    for kept, _ in _listeners:
        kept(tensor)


@contextlib.contextmanager
def updating(weight: torch.Tensor) -> Iterator[None]:
    """Around the optimizer's step of this weight alone, with its gradient, inside the backward pass."""
    with contextlib.ExitStack() as contexts:
        for _, update in _listeners:
            contexts.enter_context(update(weight))
        yield
