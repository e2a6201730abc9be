"""What `Accelerator` is given for each mode of parallelism."""

from typing import Any

import torch
from accelerate import DistributedDataParallelKwargs, FullyShardedDataParallelPlugin

from legroom.compat import accelerate_private, torch_distributed_private, torch_private
from legroom.config import Config
from legroom.parallelism import zero

DDP_KEYS = ("bucket_cap_mb", "find_unused_parameters", "static_graph", "gradient_as_bucket_view")


def mode_arguments(cfg: Config) -> dict[str, Any]:
    """What both recipes give to `Accelerator` for the mode of parallelism. Needs the initialised process group."""
    if cfg.parallelism.kind == "zero":
        return zero.accelerator_arguments(cfg)
    if cfg.parallelism.kind == "mesh" and cfg.parallelism.fsdp_ranks == 1:
        return {}
    if cfg.parallelism.sharded:
        return _fsdp()
    if cfg.parallelism.kind in ("ddp", "fsdp"):  # fsdp's option that shards nothing is DDP
        return _ddp(cfg)
    return {}


def _ddp(cfg: Config) -> dict[str, Any]:
    settings: dict[str, Any] = {"gradient_as_bucket_view": True}
    for key in DDP_KEYS:
        value = getattr(cfg.parallelism, key)
        if value is not None:
            settings[key] = value
    return {"kwargs_handlers": [DistributedDataParallelKwargs(**settings)]}


def _fsdp() -> dict[str, Any]:
    """For a model that `fsdp.shard` has already sharded."""
    accelerate_private.allow_fsdp_on_cpu()
    accelerate_private.keep_sharded_parameters()
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, cpu_ram_efficient_loading=False, activation_checkpointing=False
    )
    return {"fsdp_plugin": plugin}


def waiting_seconds(model: Any) -> float | None:
    """How long the backward pass of a step waits for the gradients of other ranks: the communication that DDP has
    sampled and that no computation hides. None for other modes, which have no such figure."""
    model = torch_private.without_compile(model)
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return None
    return torch_distributed_private.ddp_waiting_seconds(model)
