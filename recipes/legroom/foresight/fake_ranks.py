"""A configuration on the fake device: its libraries, its TrainingArguments, and its other ranks.

Everything here is undone afterwards.
"""

import contextlib
import functools
import os
import re
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from transformers import TrainingArguments

from legroom.compat import (
    accelerate_private,
    torch_distributed_private,
    transformers_models_private,
    transformers_trainer_private,
)
from legroom.compat.patching import patched
from legroom.config import Config
from legroom.estimator.fake_gpu import known_values, libraries
from legroom.estimator.fake_gpu.backend import Stream
from legroom.estimator.fake_gpu.device import FakeDevice
from legroom.estimator.fake_gpu.op_trace import OpTrace
from legroom.estimator.ledger.kinds import OTHER
from legroom.estimator.ledger.storage_log import StorageLog
from legroom.foresight.zero import ranks as zero_ranks
from legroom.foresight.zero import shards as zero_shards
from legroom.levers.attention.rules import FLASH
from legroom.options import gpu as gpu_options
from legroom.options import training_arguments
from legroom.parallelism import zero
from legroom.ranks import collectives, rank_info

# transformers' names of what bitsandbytes has: a worker's configuration comes from a record, which holds no facts.
OF_BITSANDBYTES = re.compile("8bit|bnb|paged|lion|ademamix")
BROADCASTS_AT_ONCE = 2  # max_in_flight of torch's broadcast_coalesced (csrc/distributed/c10d/comm.cpp)


def arguments_for(cfg: Config, folder: str, device: torch.device) -> TrainingArguments:
    """`training_arguments.training_arguments` for a GPU that this machine lacks; batches go to the fake device."""
    with transformers_trainer_private.unchecked_gpu_support():
        args = training_arguments.training_arguments(cfg, folder)
        _ = args.device  # sets up Accelerate's state
    if device.type != "cpu":
        transformers_trainer_private.set_arguments_device(args, device)
        args.dataloader_pin_memory = False
    args.dataloader_num_workers = 0  # two batches are read
    args.dataloader_persistent_workers = False
    return args


def libraries_of(cfg: Config, fake: FakeDevice) -> contextlib.AbstractContextManager:
    """`libraries.libraries_on` for what a configuration uses."""
    by_optimizer = OF_BITSANDBYTES.search(cfg.optim.transformers_name or "") is not None
    uses_bitsandbytes = bool(cfg.adapter.bits) or (by_optimizer and fake.capability is not None)
    flash_attention = cfg.model.attention if cfg.model.attention in FLASH else None
    return libraries.libraries_on(fake, uses_bitsandbytes, flash_attention)


# --- several ranks ----------------------------------------------------------------------------------


@contextlib.contextmanager
def rank_of(cfg: Config, fake: FakeDevice, rank: int) -> Iterator[None]:
    """Inside, this process is one rank of `parallelism.num_processes`, whose collectives return at once.

    They run on torch's "fake" process group, which communicates nothing.
    """
    count = cfg.parallelism.world_size
    if count == 1 and not cfg.parallelism.sharded and cfg.parallelism.kind != "zero":
        yield  # nor does Accelerate use DDP for one GPU
        return
    environment = dict(os.environ)  # Accelerate writes to it, too
    here = gpu_options.ranks_per_machine(cfg)
    rank_info.export_environment(rank_info.RankInfo(rank, count, rank % here, here))
    backend = ",".join(f"{kind}:fake" for kind in sorted({"cpu", fake.device.type}))
    store = torch_distributed_private.fake_process_group_store()
    dist.init_process_group(backend, store=store, rank=rank, world_size=count)
    try:
        all_reduce_sum = functools.partial(_all_reduce_sum, collectives.all_reduce_sum)
        # FSDP waits on the current stream for weights that it has gathered and did not need, before the first layer
        # that is trained. torch's own stream of such a backend would read an event of Python's as one of C++.
        streams = patched(torch.accelerator, current_stream=Stream)
        sums = patched(collectives, all_reduce_sum=all_reduce_sum)
        even = transformers_models_private.replaced_routes(_even_routes, _same_counts)
        routes = even if cfg.parallelism.experts or cfg.parallelism.kind == "fsdp_tp" else contextlib.nullcontext()
        kept = torch_distributed_private.messages_keep_tensors() if cfg.parallelism.stages else contextlib.nullcontext()
        with torch_distributed_private.replaced_ddp(FakeDDP), kept, sums, streams, routes, _engine(cfg):
            yield
    finally:
        dist.destroy_process_group()
        os.environ.clear()
        os.environ.update(environment)


@contextlib.contextmanager
def _engine(cfg: Config) -> Iterator[None]:
    """Inside, parallelism=zero needs no DeepSpeed, whose engine `zero_ranks` plays."""
    if cfg.parallelism.kind != "zero":
        yield
        return
    wrapper = torch_distributed_private.replaced_ddp(zero_ranks.ZeroModel)
    linear = zero_shards.linear if cfg.parallelism.fetches_ahead else functional.linear
    arguments = patched(zero, accelerator_arguments=lambda cfg: {})
    with wrapper, patched(functional, linear=linear), arguments, accelerate_private.outputs_as_computed():
        yield


def _all_reduce_sum(all_reduce_sum: Any, numbers: list, device: torch.device) -> torch.Tensor:
    """`collectives.all_reduce_sum` where every rank has the N known numbers of this one. Returns (N,) on the host."""
    all_reduce_sum(numbers, device)  # for its operations
    return torch.tensor([int(number) for number in numbers], dtype=torch.float64) * dist.get_world_size()


def _even_routes(chosen: torch.Tensor, experts: int) -> torch.Tensor:
    """Experts for tokens of which each gets as many as any other. chosen: (tokens, experts of each), without values."""
    return torch.arange(chosen.numel(), device=chosen.device).remainder(experts).view_as(chosen)


def _same_counts(received: torch.Tensor, sent: torch.Tensor, group: Any = None) -> None:
    """Every rank is sent as many tokens for each expert as this one sends."""
    received.copy_(sent)
    received.known_value = known_values.value_of(sent)  # type: ignore[attr-defined]


class FakeDDP(torch.nn.parallel.DistributedDataParallel):
    """DDP whose all-reduce returns its input: the result of the fake process group's own cannot be read by DDP."""

    def __init__(self, module: torch.nn.Module, device_ids: Any = None, output_device: Any = None, **settings: Any):
        super().__init__(module, **settings)
        self.reduced: list[torch.Tensor] = []  # buckets of the latest step
        self.register_comm_hook(self.reduced, _all_reduce)

    def rebuild_buckets(self, log: StorageLog) -> None:
        """Rebuild the gradient buckets behind the first step, so that the second step is like every later one.

        NCCL's process group holds the first ones until its watchdog, which looks ten times a second, has seen that
        their reductions are over, and another collective begins (TensorShelf in ProcessGroupNCCL.hpp). When that is, is
        a matter of luck: the allocator never gets them back here.
        """
        if torch_distributed_private.rebuild_ddp_buckets(self):
            for buffer in self.reduced:
                entry = log.entry_of(buffer)
                assert entry is not None, "the log has seen the buckets being reduced"
                entry.stays_allocated = True
        self.reduced.clear()


def _all_reduce(reduced, bucket):  # no annotations: DDP compares them with types, and here they would be strings
    reduced.append(bucket.buffer())
    dist.all_reduce(bucket.buffer())
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def note_first_broadcast(model: torch.nn.Module, trace: OpTrace) -> None:
    """What DDP's constructor allocates and frees before the first step, beside the weights."""
    if isinstance(model, FakeDDP):
        trace.ledger.attribution.mark_model_and_optimizer()
        sizes = torch_distributed_private.ddp_broadcast_bytes(model)
        trace.log.add_passing_sizes(sizes, OTHER, BROADCASTS_AT_ONCE)


def rebuild_buckets(model: torch.nn.Module, log: StorageLog) -> None:
    """What DDP does between the first two steps. log: of the storages."""
    if isinstance(model, FakeDDP):
        model.rebuild_buckets(log)
