"""Undocumented names of bitsandbytes' optimizers that this project uses, each with its reason. Imports bitsandbytes."""

from __future__ import annotations

from typing import Any

import torch
from bitsandbytes.optim import GlobalOptimManager


def clear_overrides() -> None:
    """Forgets which weights keep 32-bit states. bitsandbytes identifies a weight by its id, which a weight of this
    model may share with a weight of an earlier model in the process."""
    GlobalOptimManager.get_instance().initialize()


def state_buffer(optimizer: Any, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An empty optimizer state of a weight, in paged memory if the optimizer pages its states."""
    return optimizer.get_state_buffer(weight, dtype=dtype)
