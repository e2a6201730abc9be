"""Private names of torch.distributed that predictions of collectives need."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, distributed_c10d


def ddp_buckets(gradients: list[torch.Tensor], bucket_bytes: int) -> list[list[int]]:
    """The buckets into which DDP puts gradients: the indices of the gradients in each bucket.

    DistributedDataParallel calls the same function with the same smaller first bucket
    (torch/nn/parallel/distributed.py, _ddp_init_helper), and no public function gives its buckets.

    gradients: in the order in which the backward pass makes them; meta tensors do. bucket_bytes: `bucket_cap_mb`.
    """
    limits = [dist._DEFAULT_FIRST_BUCKET_BYTES, bucket_bytes]
    return dist._compute_bucket_assignment_by_size(gradients, limits)[0]


def group_size(argument: Any) -> int | None:
    """How many ranks a process group has, as an operation of c10d gets it; None for any other argument.

    c10d's operations get a ScriptObject, and only `_type()` tells a process group from others.
    """
    if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
        return ProcessGroup.unbox(argument).size()
    return None


def group_size_by_name(name: str) -> int:
    """How many ranks the process group of that name has: functional collectives get a name instead of a group."""
    return distributed_c10d._resolve_process_group(name).size()
