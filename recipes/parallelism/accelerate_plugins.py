"""One set of arguments for both recipes: the menus' entries merged into TrainingArguments."""

from __future__ import annotations

from recipes.options import parallelism
from recipes.parallelism import accelerate_plugins, zero


def accelerator_arguments(cfg, args) -> dict:
    """What `Accelerator` takes, read from TrainingArguments the way the Trainer reads it."""
    from accelerate.utils import TorchDynamoPlugin

    return accelerate_plugins.mode_arguments(cfg) | {
        "mixed_precision": args.mixed_precision,
        "dynamo_plugin": TorchDynamoPlugin(backend=args.torch_compile_backend, mode=args.torch_compile_mode),
    }


def replicated(model):
    """The model on every visible GPU, for parallelism=dp."""
    import torch

    return torch.nn.DataParallel(model)


def waiting_seconds(model) -> float | None:
    """How long a step's backward pass waits for gradients of other ranks: DDP's own sample of communication
    that no computation hides. None for other modes, which do not tell."""
    import torch

    while model is not None and not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model = getattr(model, "_orig_mod", None)  # torch.compile may stand around it
    if model is None:
        return None
    told = model._get_ddp_logging_data()
    if "avg_backward_comm_time" not in told:
        return None
    return (told["avg_backward_comm_time"] - told["avg_backward_compute_comm_overlap_time"]) / 1e9


def mode_arguments(cfg) -> dict:
    """What `Accelerator` takes for the mode, in both recipes. Call it once the process group stands."""
    if cfg.parallelism.name == "zero":
        return zero.accelerator_arguments(cfg)
    if parallelism.sharded(cfg):
        return _fsdp()
    if cfg.parallelism.name not in ("ddp", "fsdp"):
        return {}
    from accelerate import DistributedDataParallelKwargs

    own = cfg.parallelism
    return {
        "kwargs_handlers": [
            DistributedDataParallelKwargs(
                gradient_as_bucket_view=own.gradient_as_bucket_view is not False,
                **{
                    key: getattr(own, key)
                    for key in ("bucket_cap_mb", "find_unused_parameters", "static_graph")
                    if getattr(own, key) is not None
                },
            )
        ]
    }


def _fsdp() -> dict:
    """Tell Accelerate that the model is sharded, which `sharding.shard` has done."""
    from accelerate import FullyShardedDataParallelPlugin, PartialState
    from accelerate.utils import DistributedType

    if PartialState().device.type == "cpu":
        # Accelerate turns a group of GPU ranks into FSDP, and no other, though FSDP2 runs on any device.
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    return {
        "fsdp_plugin": FullyShardedDataParallelPlugin(
            fsdp_version=2, cpu_ram_efficient_loading=False, activation_checkpointing=False
        )
    }
