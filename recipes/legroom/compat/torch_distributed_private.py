"""Private names of torch.distributed and DistributedDataParallel that this project uses, each with its reason."""

# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel import distributed as _distributed

from legroom.compat.patching import patched

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

# --- sharded tensors ---------------------------------------------------------------------------------


def shard_offset(tensor: DTensor) -> list[int]:
    """The offset of this rank's shard in the whole tensor. DTensor has no public method for it."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return list(offset)


def shard_like(sharded: Any, whole: torch.Tensor) -> DTensor:
    """The shards of a tensor that every rank has whole, as another tensor of its shape is sharded; nothing is sent.

    `DTensor.redistribute` does not do it for the placements of tensor parallelism with FSDP.
    """
    from torch.distributed.tensor import DTensor

    box = tuple(
        slice(begin, begin + size) for begin, size in zip(shard_offset(sharded), sharded.to_local().shape, strict=True)
    )
    return DTensor.from_local(
        whole[box].contiguous(),
        sharded.device_mesh,
        sharded.placements,
        run_check=False,
        shape=sharded.shape,
        stride=sharded.stride(),
    )


# --- process groups ----------------------------------------------------------------------------------


def group_of(argument: Any) -> ProcessGroup | None:
    """The process group that an operation of c10d gets as an argument; None for any other argument.

    c10d's operations get a ScriptObject, and only `_type()` tells a process group from others.
    """
    if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
        return ProcessGroup.unbox(argument)
    return None


def group_by_name(name: str) -> ProcessGroup:
    """The process group of that name: functional collectives get a name instead of a group."""
    return distributed_c10d._resolve_process_group(name)  # type: ignore[arg-type]  (GroupName: a str)


def fake_process_group_store() -> Any:
    """The store of torch's "fake" process group (a test tool of torch), whose collectives return at once."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the "fake" backend when imported

    return FakeStore()


# Since torch 2.13 the public names are others, and the old ones warn. all_gather(whole, part, group=), and
# reduce_scatter(part, whole, group=), of tensors (N,) on each rank.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


# --- DistributedDataParallel -------------------------------------------------------------------------


def rebuild_ddp_buckets(ddp: DistributedDataParallel) -> bool:
    """Order DDP's gradient buckets by the order of the gradients in the last backward pass, once. Returns whether.

    DDP does this itself at the beginning of the second forward pass (torch/csrc/distributed/c10d/reducer.cpp).
    """
    return ddp.reducer._rebuild_buckets()


def ddp_broadcast_bytes(ddp: DistributedDataParallel) -> list[int]:
    """Bytes of the flat copies in which DDP's constructor sends the weights and buffers of rank 0 to all, in order.

    Of one type each, and closed by the tensor with which they reach `broadcast_bucket_size`, 250 MiB. One tensor alone
    is sent as it is (torch/csrc/utils/tensor_flatten.h).
    """
    named = itertools.chain(ddp.module.named_parameters(), ddp.module.named_buffers())
    states = [state for name, state in named if name not in ddp.parameters_to_ignore]
    if not states:
        return []
    buckets, _ = dist._compute_bucket_assignment_by_size(states, [ddp.broadcast_bucket_size])
    return [sum(states[index].nbytes for index in bucket) for bucket in buckets if len(bucket) > 1]


def ddp_waiting_seconds(ddp: DistributedDataParallel) -> float | None:
    """Mean seconds of a backward pass in which DDP communicates and does not compute. None before DDP has sampled."""
    figures = ddp._get_ddp_logging_data()
    if "avg_backward_comm_time" not in figures:
        return None
    nanoseconds = figures["avg_backward_comm_time"] - figures["avg_backward_compute_comm_overlap_time"]
    return nanoseconds / 1e9


@contextlib.contextmanager
def replaced_ddp(ddp: type) -> Iterator[None]:
    """Inside, `torch.nn.parallel.DistributedDataParallel` is `ddp`, whose constructor compares no shapes.

    `_verify_param_shape_across_processes` reads what the other ranks answer, and a fake process group has no answer.
    """
    with (
        patched(torch.nn.parallel, DistributedDataParallel=ddp),
        patched(_distributed, _verify_param_shape_across_processes=lambda *_: True),
    ):
        yield


# --- pipelining --------------------------------------------------------------------------------------


def pipeline_stage(
    module: torch.nn.Module, index: int, count: int, device: torch.device, given: Any, made: Any, group: ProcessGroup
) -> Any:
    """A stage of a pipeline whose shapes are known: given and made (on the meta device) are its input and output.

    Private because torch lets the ranks vote in each new schedule whether all know their shapes, and waits for them.
    """
    from torch.distributed.pipelining import PipelineStage

    class KnownStage(PipelineStage):
        def _warmup_forward_vote(self, *_: Any, **__: Any) -> torch.Tensor:
            return torch.ones(1, dtype=torch.int32, device="cpu")

        _warmup_backward_result = _warmup_forward_vote

    return KnownStage(module, index, count, device, input_args=given, output_args=made, group=group)


class _HeldWork:
    """A message under way, which keeps its tensor as a real one does. The fake process group's keeps none."""

    def __init__(self, work: Any, tensor: torch.Tensor):
        self.work, self.tensor = work, tensor

    def wait(self) -> bool:
        return self.work is None or self.work.wait()


@contextlib.contextmanager
def messages_keep_tensors() -> Iterator[None]:
    """Inside, what `isend` and `irecv` return keeps the tensor, under both names that torch's schedules compare."""

    def held(send: Callable[..., Any]) -> Callable[..., Any]:
        return lambda tensor, *args, **kwargs: _HeldWork(send(tensor, *args, **kwargs), tensor)

    names = {"isend": held(distributed_c10d.isend), "irecv": held(distributed_c10d.irecv)}
    with patched(dist, **names), patched(distributed_c10d, **names):
        yield


def pipeline_schedule(name: str, stages: list[Any], micro_batches: int, loss: Callable[..., torch.Tensor]) -> Any:
    """The schedule 'gpipe', '1f1b' or 'interleaved' of a rank's stages. loss: of the last one's output."""
    from torch.distributed import pipelining

    if name == "interleaved":
        return pipelining.ScheduleInterleaved1F1B(stages, micro_batches, loss, scale_grads=False)
    kind = pipelining.ScheduleGPipe if name == "gpipe" else pipelining.Schedule1F1B
    return kind(stages[0], micro_batches, loss, scale_grads=False)


@contextlib.contextmanager
def reduced_once(model: Any, stays_gathered: bool) -> Iterator[None]:
    """Inside, FSDP adds up the gradients of several backward passes of a model, whole on each rank; they are reduced at
    the end. stays_gathered: weights are freed at the end, instead of after each backward pass.

    As torch's stages of a pipeline do it (`_PipelineStageBase.perform_reduce_grad`), for a module that is FSDP's.
    """
    from torch.distributed.fsdp import fully_shard

    model.set_requires_gradient_sync(False)
    model.set_is_last_backward(False)
    if stays_gathered:
        model.set_reshard_after_backward(False)
    yield
    model.set_is_last_backward(True)
    model.set_reshard_after_backward(True)
    model.set_requires_gradient_sync(True)
    state = fully_shard.state(model)  # type: ignore[attr-defined]
    for each in state._state_ctx.all_states:
        for group in each._fsdp_param_groups:
            group.post_backward()
    state._root_post_backward_final_callback()


def find_fsdp_modules(model: Any) -> None:
    """Lets FSDP look for its modules in a model now, and not in the first forward pass, in which a pipeline's rank has
    those of one part alone: the others would each be a model of their own."""
    from torch.distributed.fsdp import fully_shard

    fully_shard.state(model)._lazy_init()  # type: ignore[attr-defined]
