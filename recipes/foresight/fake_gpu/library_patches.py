"""Accelerate, TrainingArguments and bitsandbytes on the fake device: what asks for a real GPU before it does its work."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from unittest import mock

import accelerate
import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

from recipes.machine import host
from recipes.options import parallelism
from recipes.ranks import collectives, rank_info


class Scaler(torch.amp.GradScaler):
    """fp16's scaler. There is nothing that could overflow, so it never skips a step."""

    def _maybe_opt_step(self, optimizer, optimizer_state, *args, **kwargs):
        return optimizer.step(*args, **kwargs)


class FakeAccelerator(accelerate.Accelerator):
    """Accelerate's own, which takes the fake device for CUDA as long as it asks for the name."""

    device_to_use: torch.device

    def __init__(self, **settings):
        PartialState._shared_state["device"] = torch.device("cuda")
        if collectives.is_distributed():
            PartialState._shared_state |= {
                "distributed_type": DistributedType.MULTI_GPU,
                "process_index": 0,
                "num_processes": torch.distributed.get_world_size(),
                "local_process_index": 0,
            }
        super().__init__(**settings | {"cpu": False})
        AcceleratorState._shared_state["device"] = PartialState._shared_state["device"] = self.device_to_use
        if self.scaler is not None:
            self.scaler = Scaler(self.device_to_use.type)


def training_arguments(cfg, folder: str, device: torch.device):
    """`arguments.training_arguments` for a GPU that is not there; its batches go to the fake device."""
    from transformers import training_args

    from recipes.options import training_arguments

    with mock.patch.multiple(
        training_args,
        is_torch_bf16_gpu_available=lambda: True,
        is_torch_tf32_available=lambda: True,
        enable_tf32=lambda enable: None,
    ):
        args = training_arguments.training_arguments(cfg, folder)
        args.device  # settles Accelerate's state
    if device.type != "cpu":
        args.__dict__["_setup_devices"] = device
        args.dataloader_pin_memory = False
    args.dataloader_num_workers = 0  # two batches are read
    return args


@contextlib.contextmanager
def pretended(fake):
    """Inside, `accelerate.Accelerator` is ours, and bitsandbytes pages states without CUDA. fake: the FakeDevice."""
    with contextlib.ExitStack() as left:
        if fake.capability is not None:
            ours = type("Accelerator", (FakeAccelerator,), {"device_to_use": fake.device})
            left.enter_context(mock.patch.object(accelerate, "Accelerator", ours))
            if host.has("bitsandbytes"):
                from bitsandbytes import functional

                left.enter_context(
                    mock.patch.multiple(
                        functional, get_paged=functools.partial(_paged, fake), fill=_nothing, prefetch_tensor=_nothing
                    )
                )
        yield


@contextlib.contextmanager
def ranks_of(cfg, fake):
    """Inside, this process is rank 0 of as many as the configuration has; the others are not there. fake: the FakeDevice."""
    count = cfg.parallelism.num_processes
    if count == 1 and not parallelism.sharded(cfg):  # Accelerate, too, has no DDP for one GPU
        yield
        return
    import torch.distributed as dist
    from torch.nn.parallel import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    before = dict(os.environ)  # Accelerate, too, says there what it does
    rank_info.export_environment(rank_info.RankInfo(0, count, 0, count))
    backend = ",".join(f"{kind}:fake" for kind in sorted({"cpu", fake.device.type}))
    dist.init_process_group(backend, store=FakeStore(), rank=0, world_size=count)
    try:
        with (
            mock.patch.object(torch.nn.parallel, "DistributedDataParallel", FakeDDP),
            mock.patch.object(distributed, "_verify_param_shape_across_processes", lambda *_: True),
            mock.patch.object(collectives, "all_reduce_sum", functools.partial(_total, collectives.all_reduce_sum)),
        ):
            yield
    finally:
        dist.destroy_process_group()
        os.environ.clear()
        os.environ.update(before)


def _total(ask, numbers, device):
    """`ranks.total` where nobody answers: every rank has what this one has. () numbers that are known, (N,) on the host."""
    ask(numbers, device)  # what it sends is sent
    return torch.tensor([int(number) for number in numbers], dtype=torch.float64) * torch.distributed.get_world_size()


class FakeDDP(torch.nn.parallel.DistributedDataParallel):
    """DDP whose reduction gives back what it got: the fake process group's own has no result that DDP could read."""

    def __init__(self, module, device_ids=None, output_device=None, **settings):
        super().__init__(module, **settings)
        self.register_comm_hook(None, _reduced)


def settle_buckets(model) -> None:
    """What DDP does as its second forward pass begins, once for all: put gradients into buckets in the order in which
    they came. Done between two steps, so that the second is like every later one.
    """
    if isinstance(model, FakeDDP):
        model.reducer._rebuild_buckets()


def _reduced(_, bucket):  # DDP reads the annotation that would stand here, and it must be no text
    torch.distributed.all_reduce(bucket.buffer())
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def _paged(fake, *shape: int, dtype: torch.dtype = torch.float32, device=None) -> torch.Tensor:
    """A paged state: memory that the driver moves between the host and the GPU, and torch's allocator knows nothing of."""
    made = fake.empty(
        shape, torch.empty(shape, device="meta").stride(), dtype, math.prod(shape) * dtype.itemsize, torch.device("cpu")
    )
    made.is_paged = True
    return made


def _nothing(*_, **__) -> None:
    pass
