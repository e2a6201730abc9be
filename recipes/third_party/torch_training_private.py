"""Private names of torch that a training reads, each with its reason."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor


def shard_offset(tensor: DTensor) -> list[int]:
    """The offset of this rank's shard in the whole tensor. DTensor has no public method for it."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return list(offset)


def without_compile(model: Any) -> Any:
    """The module that `torch.compile` wraps, or the module itself."""
    return getattr(model, "_orig_mod", model)


def ddp_waiting_seconds(model: torch.nn.parallel.DistributedDataParallel) -> float | None:
    """Mean seconds of a backward pass in which DDP communicates and does not compute. None before DDP has sampled."""
    figures = model._get_ddp_logging_data()
    if "avg_backward_comm_time" not in figures:
        return None
    nanoseconds = figures["avg_backward_comm_time"] - figures["avg_backward_compute_comm_overlap_time"]
    return nanoseconds / 1e9


def compiled_graphs() -> int:
    """How many graphs torch.compile has compiled in this process. The public logs are text."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]
