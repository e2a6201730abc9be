"""Private state of Accelerate that a training sets, each with its reason."""

from __future__ import annotations

from collections.abc import Callable

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType


def allow_fsdp_on_cpu() -> None:
    """Accelerate uses FSDP only for a process group of GPUs, though FSDP2 runs on any device."""
    if PartialState().device.type == "cpu":
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def keep_deepspeed_engine(accelerator: Accelerator) -> None:
    """`Trainer.train` calls `accelerator.free_memory` first, which would end the DeepSpeed engine of a training that
    is continued by a second call."""
    accelerator.free_memory = lambda *kept: kept  # type: ignore[method-assign]  (an attribute of this object)


def forward_without_autocast(model: torch.nn.Module) -> Callable:
    """The model's forward pass without the autocast that `Accelerator.prepare` put around it."""
    return getattr(model, "_original_forward", model)
