"""The model and the optimizer inside the wrappers that Accelerate, DDP, torch.compile and DeepSpeed add."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from accelerate import Accelerator


def inner_model(accelerator: Accelerator, model: Any) -> Any:
    """The model without DDP, DeepSpeed's engine and torch.compile; mixed precision's autocast stays around its
    forward pass."""
    return accelerator.unwrap_model(model, keep_fp32_wrapper=True, keep_torch_compile=False)


def inner_optimizer(optimizer: Any) -> Any:
    """The optimizer without Accelerate's wrapper and DeepSpeed's inside it."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


@contextlib.contextmanager
def evaluation_weights(optimizer: Any) -> Iterator[None]:
    """Inside, the model has the weights to evaluate and to save. Schedule-free optimizers train other weights than
    these, and swap them in `optimizer.eval()` and `optimizer.train()`; other optimizers have neither method."""
    inner = inner_optimizer(optimizer)
    swaps = hasattr(inner, "eval") and hasattr(inner, "train")
    if swaps:
        inner.eval()
    try:
        yield
    finally:
        if swaps:
            inner.train()


def start_training(optimizer: Any) -> None:
    """Calls `optimizer.train()` where there is one: schedule-free optimizers need it before the first step."""
    inner = inner_optimizer(optimizer)
    if hasattr(inner, "train"):
        inner.train()
